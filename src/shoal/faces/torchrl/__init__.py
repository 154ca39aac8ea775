"""TorchRL's dialect: envs that read and write TensorDicts, with a pool behind the batched ones.

    specs            what a tensor may be: Composite and its leaves
    spaces           gymnasium spaces to specs and back
    env_base         EnvBase: reset, step, rollout
    transforms       Transform, Compose, TransformedEnv
    gym              GymEnv, GymWrapper; dm_control and pettingzoo have their own modules
    batched          SerialEnv, ParallelEnv, EnvCreator
    async_pool       AsyncEnvPool: send to some envs, receive from whichever is ready
    mdp              step_mdp, terminated_or_truncated
    jax_envs         BraxEnv, JumanjiEnv, GymnaxEnv and their wrappers
    native           PendulumEnv, TicTacToeEnv, FinancialRegimeEnv, LLMHashingEnv, ChessEnv
    model_based      ModelBasedEnvBase, DreamerEnv, DreamerDecoder
    checking         check_env_specs
    bridge           to_torchrl: an env that TorchRL's own collectors and losses accept

Every name is also exported here, and loaded on first use:

    >>> from shoal.faces.torchrl import Bounded, Composite, OneHot
    >>> spec = Composite(action=OneHot(3), speed=Bounded(-1, 1, shape=(2,)))
    >>> spec.is_in(spec.rand())
    True

The package needs torch and tensordict (``pip install 'shoal[torch]'``), but not TorchRL.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from shoal.errors import BackendUnavailable

_MISSING = [name for name in ("torch", "tensordict") if find_spec(name) is None]
if _MISSING:
    raise BackendUnavailable(f"TorchRL's dialect needs {' and '.join(_MISSING)}: pip install 'shoal[torch]'")

if TYPE_CHECKING:
    from shoal.faces.torchrl.async_pool import AsyncEnvPool as AsyncEnvPool
    from shoal.faces.torchrl.async_pool import ProcessorAsyncEnvPool as ProcessorAsyncEnvPool
    from shoal.faces.torchrl.async_pool import ThreadingAsyncEnvPool as ThreadingAsyncEnvPool
    from shoal.faces.torchrl.batched import EnvCreator as EnvCreator
    from shoal.faces.torchrl.batched import ParallelEnv as ParallelEnv
    from shoal.faces.torchrl.batched import SerialEnv as SerialEnv
    from shoal.faces.torchrl.batched import env_creator as env_creator
    from shoal.faces.torchrl.batched import get_env_metadata as get_env_metadata
    from shoal.faces.torchrl.bridge import to_torchrl as to_torchrl
    from shoal.faces.torchrl.checking import check_env_specs as check_env_specs
    from shoal.faces.torchrl.composites import make_composite_from_td as make_composite_from_td
    from shoal.faces.torchrl.dm_control import DMControlEnv as DMControlEnv
    from shoal.faces.torchrl.dm_control import DMControlWrapper as DMControlWrapper
    from shoal.faces.torchrl.env_base import EnvBase as EnvBase
    from shoal.faces.torchrl.exploration import ExplorationType as ExplorationType
    from shoal.faces.torchrl.exploration import exploration_type as exploration_type
    from shoal.faces.torchrl.exploration import set_exploration_type as set_exploration_type
    from shoal.faces.torchrl.gym import GymEnv as GymEnv
    from shoal.faces.torchrl.gym import GymWrapper as GymWrapper
    from shoal.faces.torchrl.gym_library import gym_backend as gym_backend
    from shoal.faces.torchrl.gym_library import set_gym_backend as set_gym_backend
    from shoal.faces.torchrl.gym_like import GymLikeEnv as GymLikeEnv
    from shoal.faces.torchrl.info_readers import BaseInfoDictReader as BaseInfoDictReader
    from shoal.faces.torchrl.info_readers import default_info_dict_reader as default_info_dict_reader
    from shoal.faces.torchrl.jax_envs.brax import BraxEnv as BraxEnv
    from shoal.faces.torchrl.jax_envs.brax import BraxWrapper as BraxWrapper
    from shoal.faces.torchrl.jax_envs.gymnax import GymnaxEnv as GymnaxEnv
    from shoal.faces.torchrl.jax_envs.gymnax import GymnaxWrapper as GymnaxWrapper
    from shoal.faces.torchrl.jax_envs.jumanji import JumanjiEnv as JumanjiEnv
    from shoal.faces.torchrl.jax_envs.jumanji import JumanjiWrapper as JumanjiWrapper
    from shoal.faces.torchrl.libraries import get_available_libraries as get_available_libraries
    from shoal.faces.torchrl.mdp import step_mdp as step_mdp
    from shoal.faces.torchrl.mdp import terminated_or_truncated as terminated_or_truncated
    from shoal.faces.torchrl.metadata import EnvMetaData as EnvMetaData
    from shoal.faces.torchrl.mo_gym import MOGymEnv as MOGymEnv
    from shoal.faces.torchrl.mo_gym import MOGymWrapper as MOGymWrapper
    from shoal.faces.torchrl.model_based import DreamerDecoder as DreamerDecoder
    from shoal.faces.torchrl.model_based import DreamerEnv as DreamerEnv
    from shoal.faces.torchrl.model_based import ModelBasedEnvBase as ModelBasedEnvBase
    from shoal.faces.torchrl.multithreaded import MultiThreadedEnv as MultiThreadedEnv
    from shoal.faces.torchrl.multithreaded import MultiThreadedEnvWrapper as MultiThreadedEnvWrapper
    from shoal.faces.torchrl.native.chess import ChessEnv as ChessEnv
    from shoal.faces.torchrl.native.financial import FinancialRegimeEnv as FinancialRegimeEnv
    from shoal.faces.torchrl.native.hashing import SipHash as SipHash
    from shoal.faces.torchrl.native.llm_hashing import LLMHashingEnv as LLMHashingEnv
    from shoal.faces.torchrl.native.pendulum import PendulumEnv as PendulumEnv
    from shoal.faces.torchrl.native.tictactoe import TicTacToeEnv as TicTacToeEnv
    from shoal.faces.torchrl.pettingzoo import MarlGroupMapType as MarlGroupMapType
    from shoal.faces.torchrl.pettingzoo import PettingZooEnv as PettingZooEnv
    from shoal.faces.torchrl.pettingzoo import PettingZooWrapper as PettingZooWrapper
    from shoal.faces.torchrl.spaces import gym_to_torchrl_spec_transform as gym_to_torchrl_spec_transform
    from shoal.faces.torchrl.spaces import register_gym_spec_conversion as register_gym_spec_conversion
    from shoal.faces.torchrl.spaces import torchrl_to_gym_spec_transform as torchrl_to_gym_spec_transform
    from shoal.faces.torchrl.specs import Binary as Binary
    from shoal.faces.torchrl.specs import Bounded as Bounded
    from shoal.faces.torchrl.specs import BoundedContinuous as BoundedContinuous
    from shoal.faces.torchrl.specs import BoundedDiscrete as BoundedDiscrete
    from shoal.faces.torchrl.specs import Categorical as Categorical
    from shoal.faces.torchrl.specs import Choice as Choice
    from shoal.faces.torchrl.specs import Composite as Composite
    from shoal.faces.torchrl.specs import MultiCategorical as MultiCategorical
    from shoal.faces.torchrl.specs import MultiOneHot as MultiOneHot
    from shoal.faces.torchrl.specs import NonTensor as NonTensor
    from shoal.faces.torchrl.specs import OneHot as OneHot
    from shoal.faces.torchrl.specs import Stacked as Stacked
    from shoal.faces.torchrl.specs import StackedComposite as StackedComposite
    from shoal.faces.torchrl.specs import TensorSpec as TensorSpec
    from shoal.faces.torchrl.specs import Unbounded as Unbounded
    from shoal.faces.torchrl.specs import UnboundedContinuous as UnboundedContinuous
    from shoal.faces.torchrl.specs import UnboundedDiscrete as UnboundedDiscrete
    from shoal.faces.torchrl.trajectories import split_trajectories as split_trajectories
    from shoal.faces.torchrl.transforms import Compose as Compose
    from shoal.faces.torchrl.transforms import Transform as Transform
    from shoal.faces.torchrl.transforms import TransformedEnv as TransformedEnv
    from shoal.faces.torchrl.transforms.action_mask import ActionMask as ActionMask
    from shoal.faces.torchrl.transforms.actions import ActionDiscretizer as ActionDiscretizer
    from shoal.faces.torchrl.transforms.affine import ObservationNorm as ObservationNorm
    from shoal.faces.torchrl.transforms.affine import RewardScaling as RewardScaling
    from shoal.faces.torchrl.transforms.auto_reset import AutoResetEnv as AutoResetEnv
    from shoal.faces.torchrl.transforms.auto_reset import AutoResetTransform as AutoResetTransform
    from shoal.faces.torchrl.transforms.auto_reset import VecGymEnvTransform as VecGymEnvTransform
    from shoal.faces.torchrl.transforms.dtypes import DoubleToFloat as DoubleToFloat
    from shoal.faces.torchrl.transforms.dtypes import DTypeCastTransform as DTypeCastTransform
    from shoal.faces.torchrl.transforms.episodes import EndOfLifeTransform as EndOfLifeTransform
    from shoal.faces.torchrl.transforms.episodes import TrajCounter as TrajCounter
    from shoal.faces.torchrl.transforms.hashes import Hash as Hash
    from shoal.faces.torchrl.transforms.history import CatFrames as CatFrames
    from shoal.faces.torchrl.transforms.history import TimeMaxPool as TimeMaxPool
    from shoal.faces.torchrl.transforms.init_tracker import InitTracker as InitTracker
    from shoal.faces.torchrl.transforms.names import ExcludeTransform as ExcludeTransform
    from shoal.faces.torchrl.transforms.names import RemoveEmptySpecs as RemoveEmptySpecs
    from shoal.faces.torchrl.transforms.names import RenameTransform as RenameTransform
    from shoal.faces.torchrl.transforms.names import SelectTransform as SelectTransform
    from shoal.faces.torchrl.transforms.pictures import CenterCrop as CenterCrop
    from shoal.faces.torchrl.transforms.pictures import GrayScale as GrayScale
    from shoal.faces.torchrl.transforms.pictures import Resize as Resize
    from shoal.faces.torchrl.transforms.pictures import ToTensorImage as ToTensorImage
    from shoal.faces.torchrl.transforms.primer import TensorDictPrimer as TensorDictPrimer
    from shoal.faces.torchrl.transforms.repeats import FrameSkipTransform as FrameSkipTransform
    from shoal.faces.torchrl.transforms.repeats import NoopResetEnv as NoopResetEnv
    from shoal.faces.torchrl.transforms.reward_sum import RewardSum as RewardSum
    from shoal.faces.torchrl.transforms.rewards import BinarizeReward as BinarizeReward
    from shoal.faces.torchrl.transforms.rewards import RewardClipping as RewardClipping
    from shoal.faces.torchrl.transforms.rewards import SignTransform as SignTransform
    from shoal.faces.torchrl.transforms.rewards import TargetReturn as TargetReturn
    from shoal.faces.torchrl.transforms.shapes import CatTensors as CatTensors
    from shoal.faces.torchrl.transforms.shapes import FlattenObservation as FlattenObservation
    from shoal.faces.torchrl.transforms.shapes import SqueezeTransform as SqueezeTransform
    from shoal.faces.torchrl.transforms.shapes import UnsqueezeTransform as UnsqueezeTransform
    from shoal.faces.torchrl.transforms.skip import ConditionalSkip as ConditionalSkip
    from shoal.faces.torchrl.transforms.step_counter import StepCounter as StepCounter
    from shoal.faces.torchrl.transforms.vec_norm import VecNorm as VecNorm
    from shoal.faces.torchrl.transforms.vec_norm import VecNormV2 as VecNormV2

_NAMES_OF = {
    "async_pool": ("AsyncEnvPool", "ProcessorAsyncEnvPool", "ThreadingAsyncEnvPool"),
    "batched": ("EnvCreator", "ParallelEnv", "SerialEnv", "env_creator", "get_env_metadata"),
    "bridge": ("to_torchrl",),
    "checking": ("check_env_specs",),
    "composites": ("make_composite_from_td",),
    "dm_control": ("DMControlEnv", "DMControlWrapper"),
    "env_base": ("EnvBase",),
    "exploration": ("ExplorationType", "exploration_type", "set_exploration_type"),
    "gym": ("GymEnv", "GymWrapper"),
    "gym_library": ("gym_backend", "set_gym_backend"),
    "gym_like": ("GymLikeEnv",),
    "info_readers": ("BaseInfoDictReader", "default_info_dict_reader"),
    "jax_envs.brax": ("BraxEnv", "BraxWrapper"),
    "jax_envs.gymnax": ("GymnaxEnv", "GymnaxWrapper"),
    "jax_envs.jumanji": ("JumanjiEnv", "JumanjiWrapper"),
    "libraries": ("get_available_libraries",),
    "mdp": ("step_mdp", "terminated_or_truncated"),
    "metadata": ("EnvMetaData",),
    "model_based": ("DreamerDecoder", "DreamerEnv", "ModelBasedEnvBase"),
    "mo_gym": ("MOGymEnv", "MOGymWrapper"),
    "multithreaded": ("MultiThreadedEnv", "MultiThreadedEnvWrapper"),
    "native.chess": ("ChessEnv",),
    "native.financial": ("FinancialRegimeEnv",),
    "native.hashing": ("SipHash",),
    "native.llm_hashing": ("LLMHashingEnv",),
    "native.pendulum": ("PendulumEnv",),
    "native.tictactoe": ("TicTacToeEnv",),
    "pettingzoo": ("MarlGroupMapType", "PettingZooEnv", "PettingZooWrapper"),
    "spaces": ("gym_to_torchrl_spec_transform", "register_gym_spec_conversion", "torchrl_to_gym_spec_transform"),
    "specs": (
        "Binary",
        "Bounded",
        "BoundedContinuous",
        "BoundedDiscrete",
        "Categorical",
        "Choice",
        "Composite",
        "MultiCategorical",
        "MultiOneHot",
        "NonTensor",
        "OneHot",
        "Stacked",
        "StackedComposite",
        "TensorSpec",
        "Unbounded",
        "UnboundedContinuous",
        "UnboundedDiscrete",
    ),
    "trajectories": ("split_trajectories",),
    "transforms": ("Compose", "Transform", "TransformedEnv"),
    "transforms.action_mask": ("ActionMask",),
    "transforms.actions": ("ActionDiscretizer",),
    "transforms.affine": ("ObservationNorm", "RewardScaling"),
    "transforms.auto_reset": ("AutoResetEnv", "AutoResetTransform", "VecGymEnvTransform"),
    "transforms.dtypes": ("DTypeCastTransform", "DoubleToFloat"),
    "transforms.episodes": ("EndOfLifeTransform", "TrajCounter"),
    "transforms.hashes": ("Hash",),
    "transforms.history": ("CatFrames", "TimeMaxPool"),
    "transforms.init_tracker": ("InitTracker",),
    "transforms.names": ("ExcludeTransform", "RemoveEmptySpecs", "RenameTransform", "SelectTransform"),
    "transforms.pictures": ("CenterCrop", "GrayScale", "Resize", "ToTensorImage"),
    "transforms.primer": ("TensorDictPrimer",),
    "transforms.repeats": ("FrameSkipTransform", "NoopResetEnv"),
    "transforms.reward_sum": ("RewardSum",),
    "transforms.rewards": ("BinarizeReward", "RewardClipping", "SignTransform", "TargetReturn"),
    "transforms.shapes": ("CatTensors", "FlattenObservation", "SqueezeTransform", "UnsqueezeTransform"),
    "transforms.skip": ("ConditionalSkip",),
    "transforms.step_counter": ("StepCounter",),
    "transforms.vec_norm": ("VecNorm", "VecNormV2"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES_OF.items() for name in names}

# TorchRL's names for some of its modules, each with the module that holds its contents here.
_PARTS = {"model_based": "model_based", "transforms": "transforms", "utils": "mdp"}

# Whether worker processes suppress warnings; set it to False to see them.
filter_warnings_subprocess = True

_WITHOUT_JAX = find_spec("jax") is None
__all__ = sorted(name for name, home in _HOMES.items() if not (_WITHOUT_JAX and ".jax_envs." in home))


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{_PARTS[name]}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
