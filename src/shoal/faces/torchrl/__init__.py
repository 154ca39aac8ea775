"""TorchRL's dialect: envs that read and write TensorDicts, with a pool behind the batched ones.

    specs            what a tensor may be: Composite and its leaves
    spaces           gymnasium spaces to specs and back
    env_base         EnvBase: reset, step, rollout
    transforms       Transform, Compose, TransformedEnv
    gym              GymEnv, GymWrapper; dm_control and pettingzoo have their own modules
    batched          SerialEnv, ParallelEnv, EnvCreator
    async_pool       AsyncEnvPool: send to some envs, receive from whichever is ready
    mdp              step_mdp, terminated_or_truncated
    native           PendulumEnv, TicTacToeEnv, FinancialRegimeEnv, LLMHashingEnv, ChessEnv
    model_based      ModelBasedEnvBase, DreamerEnv, DreamerDecoder
    checking         check_env_specs
    bridge           to_torchrl: an env that TorchRL's collectors and losses take for their own

Every name is also here, and is loaded when it is first asked for:

    >>> from shoal.faces.torchrl import Bounded, Composite, OneHot
    >>> spec = Composite(action=OneHot(3), speed=Bounded(-1, 1, shape=(2,)))
    >>> spec.is_in(spec.rand())
    True

It needs torch and tensordict (``pip install 'shoal[torch]'``), and not TorchRL.
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
    from shoal.faces.torchrl.specs import Binary as Binary

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
    "libraries": ("get_available_libraries",),
    "mdp": ("step_mdp", "terminated_or_truncated"),
    "metadata": ("EnvMetaData",),
    "model_based": ("DreamerDecoder", "DreamerEnv", "ModelBasedEnvBase"),
    "mo_gym": ("MOGymEnv", "MOGymWrapper"),
    "multithreaded": ("MultiThreadedEnv", "MultiThreadedEnvWrapper"),
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
    "transforms.auto_reset": ("AutoResetEnv", "AutoResetTransform", "VecGymEnvTransform"),
    "transforms.init_tracker": ("InitTracker",),
    "transforms.primer": ("TensorDictPrimer",),
    "transforms.reward_sum": ("RewardSum",),
    "transforms.skip": ("ConditionalSkip",),
    "transforms.step_counter": ("StepCounter",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES_OF.items() for name in names}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
