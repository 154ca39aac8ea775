"""Transforms: what happens to the data of an env on its way in and out.

base             Transform: one change, as hooks for reset, step, inputs and specs
compose          Compose: several, one after the other
functions        callables as transforms
transformed_env  TransformedEnv: an env seen through transforms
step_counter     StepCounter            init_tracker   InitTracker
reward_sum       RewardSum              skip           ConditionalSkip
primer           TensorDictPrimer       action_mask    ActionMask
auto_reset       AutoResetTransform and AutoResetEnv, for envs that reset themselves inside their step
vec_gym          VecGymEnvTransform, for Gym vector envs that do
"""

from __future__ import annotations

from shoal.faces.torchrl.transforms.base import Transform
from shoal.faces.torchrl.transforms.compose import Compose
from shoal.faces.torchrl.transforms.transformed_env import TransformedEnv

__all__ = ["Compose", "Transform", "TransformedEnv"]
