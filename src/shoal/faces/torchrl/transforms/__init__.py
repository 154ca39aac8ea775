"""Transforms: what happens to the data of an env on its way in and out.

base             Transform: one change, as hooks for reset, step, inputs and specs
compose          Compose: several, one after the other
functions        callables as transforms
transformed_env  TransformedEnv: an env seen through transforms
keyed            KeyTransform: the base of transforms that change entries one by one
following        FollowingTransform: the base of those that continue from what they wrote at the previous step
levels           LevelTransform: the base of those that write something beside the done flags
rows             which rows of a batch a reset or a step concerns
declaring        how transforms declare entries that are new to an env

affine           RewardScaling, ObservationNorm
rewards          RewardClipping, BinarizeReward, SignTransform, TargetReturn
reward_sum       RewardSum
vec_norm         VecNorm, VecNormV2
dtypes           DTypeCastTransform, DoubleToFloat
shapes           FlattenObservation, SqueezeTransform, UnsqueezeTransform, CatTensors
pictures         ToTensorImage, GrayScale, Resize, CenterCrop
history          CatFrames, TimeMaxPool
names            RenameTransform, SelectTransform, ExcludeTransform, RemoveEmptySpecs
hashes           Hash
actions          ActionDiscretizer
action_mask      ActionMask
repeats          FrameSkipTransform, NoopResetEnv
skip             ConditionalSkip
step_counter     StepCounter
init_tracker     InitTracker
episodes         TrajCounter, EndOfLifeTransform
primer           TensorDictPrimer
auto_reset       AutoResetTransform and AutoResetEnv, for envs that reset themselves inside their step;
                 VecGymEnvTransform, for Gym vector envs that do
"""

from __future__ import annotations

from shoal.faces.torchrl.transforms.base import Transform
from shoal.faces.torchrl.transforms.compose import Compose
from shoal.faces.torchrl.transforms.transformed_env import TransformedEnv

__all__ = ["Compose", "Transform", "TransformedEnv"]
