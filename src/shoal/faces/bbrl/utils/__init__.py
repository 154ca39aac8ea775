"""Beside agents: the replay buffer, the arithmetic of bootstrapping, and parameters of networks."""
