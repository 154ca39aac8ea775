"""An env that shows everything that a transform may want to change, and one transform of each kind."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

from shoal.faces.torchrl import (
    ActionDiscretizer,
    BinarizeReward,
    Bounded,
    CatFrames,
    CatTensors,
    CenterCrop,
    Compose,
    Composite,
    DoubleToFloat,
    DTypeCastTransform,
    EndOfLifeTransform,
    EnvBase,
    ExcludeTransform,
    FlattenObservation,
    FrameSkipTransform,
    GrayScale,
    Hash,
    InitTracker,
    NoopResetEnv,
    ObservationNorm,
    RemoveEmptySpecs,
    RenameTransform,
    Resize,
    RewardClipping,
    RewardScaling,
    RewardSum,
    SelectTransform,
    SignTransform,
    SqueezeTransform,
    StepCounter,
    TargetReturn,
    TensorDictPrimer,
    TimeMaxPool,
    ToTensorImage,
    Transform,
    TransformedEnv,
    Unbounded,
    UnsqueezeTransform,
    VecNormV2,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Machine(EnvBase):
    """Adds its actions up, shows pictures, loses a life every second step and ends after ``limit`` steps."""

    def __init__(self, limit: int = 3) -> None:
        super().__init__()
        self.limit = limit
        self.observation_spec = Composite(
            position=Unbounded((2,), dtype=torch.float64),
            speed=Bounded(-1, 4, shape=(1,), dtype=torch.float64),
            pixels=Bounded(0, 255, shape=(6, 4, 3), dtype=torch.uint8),
            time=Unbounded((1,), dtype=torch.int64),
        )
        self.action_spec = Bounded(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 4.0]))
        self.reward_spec = Unbounded((1,), dtype=torch.float64)
        self.position = torch.zeros(2, dtype=torch.float64)
        self.time = 0
        self.steps = 0

    @property
    def lives(self) -> int:
        return 3 - self.time // 2

    def _shown(self, speed: torch.Tensor) -> TensorDict:
        place = torch.arange(72).reshape(6, 4, 3) * (self.time + self.limit)
        return TensorDict(
            {
                "position": self.position.clone(),
                "speed": speed,
                "pixels": (place % 256).to(torch.uint8),
                "time": torch.tensor([self.time]),
            }
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.time = 0
        self.position = torch.full((2,), float(self.limit), dtype=torch.float64)
        return self._shown(torch.zeros(1, dtype=torch.float64))

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["action"].double()
        if self.time >= self.limit:
            raise RuntimeError("stepped after the end")
        self.steps += 1
        self.time += 1
        self.position = self.position + action
        out = self._shown(action[1:])
        out["reward"] = action.sum(-1, keepdim=True) - 1
        out["terminated"] = torch.tensor([self.time >= self.limit])
        return out

    def _set_seed(self, seed: int | None) -> None:
        pass


CASES: dict[str, Callable[[], Transform]] = {
    "RewardScaling": lambda: RewardScaling(0.5, 2.0),
    "RewardScaling elsewhere": lambda: RewardScaling(0.5, 2.0, out_keys=["scaled"], standard_normal=True),
    "RewardClipping": lambda: RewardClipping(-0.5, 0.5),
    "RewardClipping above": lambda: RewardClipping(clamp_max=1),
    "BinarizeReward": BinarizeReward,
    "SignTransform": lambda: SignTransform(["reward", "position"]),
    "TargetReturn": lambda: TargetReturn(10.0),
    "TargetReturn constant": lambda: TargetReturn(10.0, mode="constant"),
    "ObservationNorm": lambda: ObservationNorm(1.0, 2.0, ["position", "speed"]),
    "ObservationNorm of actions": lambda: ObservationNorm(
        torch.tensor([1.0, 0.0]), torch.tensor([2.0, -3.0]), ["time"], ["timed"], ["action"], ["push"]
    ),
    "ObservationNorm standard": lambda: ObservationNorm(1.0, 2.0, ["position"], standard_normal=True),
    "VecNormV2": lambda: VecNormV2(["position", "speed", "reward", "time"], decay=0.9),
    "DoubleToFloat": DoubleToFloat,
    "DTypeCastTransform": lambda: DTypeCastTransform(torch.int64, torch.float32, ["time"], ["time_as_float"]),
    "DTypeCastTransform of actions": lambda: DTypeCastTransform(torch.float32, torch.float64),
    "CatFrames": lambda: CatFrames(3, -1, ["position", "pixels"]),
    "CatFrames constant": lambda: CatFrames(2, -1, ["speed"], ["speeds"], padding="constant", padding_value=9),
    "TimeMaxPool": lambda: TimeMaxPool(["position"], T=3),
    "CatTensors": lambda: CatTensors(["speed", "position"], "all"),
    "CatTensors kept": lambda: CatTensors(["time", "speed"], "all", del_keys=False, sort=False),
    "CatTensors of all": lambda: Compose(ExcludeTransform("pixels", "time"), CatTensors()),
    "ToTensorImage": ToTensorImage,
    "GrayScale": lambda: Compose(ToTensorImage(), GrayScale()),
    "Resize": lambda: Compose(ToTensorImage(), Resize(3, 5)),
    "Resize bicubic": lambda: Compose(ToTensorImage(), Resize(8, interpolation="bicubic")),
    "CenterCrop": lambda: Compose(ToTensorImage(), CenterCrop(3, 7)),
    "FlattenObservation": lambda: FlattenObservation(-3, -2),
    "FlattenObservation from the front": lambda: FlattenObservation(0, 2, allow_positive_dim=True),
    "UnsqueezeTransform": lambda: UnsqueezeTransform(-1, in_keys=["position", "reward"], in_keys_inv=["action"]),
    "UnsqueezeTransform from the front": lambda: UnsqueezeTransform(0, allow_positive_dim=True, in_keys=["time"]),
    "SqueezeTransform": lambda: SqueezeTransform(-1, in_keys=["speed", "time"]),
    "RenameTransform": lambda: RenameTransform(["position", "reward"], ["place", "gain"], ["action"], ["push"]),
    "RenameTransform exchanged": lambda: RenameTransform(["position", "speed"], ["speed", "position"]),
    "RenameTransform copied": lambda: RenameTransform(["position"], [("deep", "place")], create_copy=True),
    "SelectTransform": lambda: SelectTransform("position"),
    "ExcludeTransform": lambda: ExcludeTransform("position", "pixels"),
    "FrameSkipTransform": lambda: FrameSkipTransform(2),
    "FrameSkipTransform among others": lambda: Compose(
        ObservationNorm(1.0, 2.0, ["position"], None, ["action"], ["push"]),
        CatFrames(2, -1, ["speed"]),
        RewardSum(),
        FrameSkipTransform(2),
        StepCounter(),
    ),
    "NoopResetEnv": lambda: Compose(SelectTransform("time"), StepCounter(), NoopResetEnv(1, random=False)),
    "ActionDiscretizer": lambda: ActionDiscretizer(4),
    "ActionDiscretizer one-hot": lambda: ActionDiscretizer(torch.tensor([3, 5]), "action", "choice", categorical=False),
    "EndOfLifeTransform": lambda: EndOfLifeTransform(eol_attribute="lives"),
    "RemoveEmptySpecs": RemoveEmptySpecs,
    "Hash": lambda: Hash(["position", "pixels"], ["hash", "hash_of_pixels"]),
    "InitTracker": InitTracker,
    "StepCounter": lambda: StepCounter(max_steps=2),
    "TensorDictPrimer": lambda: TensorDictPrimer(hidden=Unbounded((3,))),
}


def inside(name: str, limit: int) -> TransformedEnv:
    """An env with the transform."""
    return TransformedEnv(Machine(limit), CASES[name]())


def makers(name: str, limits: tuple[int, ...]) -> list[Callable[[], EnvBase]]:
    """Functions that make envs with the transform in each."""
    return [partial(inside, name, limit) for limit in limits]


def bare(limits: tuple[int, ...]) -> list[Callable[[], EnvBase]]:
    """Functions that make the same envs without it."""
    return [partial(Machine, limit) for limit in limits]
