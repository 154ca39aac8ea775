"""What else training needs: the replay buffer, the arithmetic of bootstrapping, and updates of network parameters."""
