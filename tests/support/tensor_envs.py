"""Small envs of TensorDicts, one per thing that can be special about their data, and how data is compared."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase

from shoal.faces.torchrl import Bounded, Categorical, Composite, EnvBase, NonTensor, Unbounded

FLAG = {"n": 2, "dtype": torch.bool}


class Walk(EnvBase):
    """Adds its action to a random walk, which its seed decides; ends after ``limit`` steps.

    Args:
        limit: Steps in an episode.
        width: Numbers in the observation.
        batch_size: How many walks are in this one env.
        dtype: Of the observation.
        delay_s: How long a step takes.
        fails_at: The step, counted from when it was made, that raises.
        dies_at: The step that ends the process.
    """

    def __init__(
        self,
        limit: int = 5,
        width: int = 3,
        batch_size: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float32,
        delay_s: float = 0.0,
        fails_at: int | None = None,
        dies_at: int | None = None,
        device: Any = None,
    ) -> None:
        super().__init__(batch_size=batch_size, device=device)
        self.limit, self.width, self.dtype = limit, width, dtype
        self.delay_s, self.fails_at, self.dies_at = delay_s, fails_at, dies_at
        size = tuple(batch_size)
        self.observation_spec = Composite(
            place=Unbounded((*size, width), dtype=dtype), count=Unbounded((*size, 1), dtype=torch.int64), shape=size
        )
        self.action_spec = Bounded(-1, 1, shape=(*size, width))
        self.reward_spec = Unbounded((*size, 1))
        self.done_spec = Composite(
            {name: Categorical(shape=(*size, 1), **FLAG) for name in ("done", "terminated", "truncated")}, shape=size
        )
        self.generator = torch.Generator()
        self.count = torch.zeros((*size, 1), dtype=torch.int64)
        self.place = torch.zeros((*size, width))
        self.steps = self.resets = 0
        self.seeds: list[int | None] = []
        self.actions: list[torch.Tensor] = []

    def _reset(self, tensordict: TensorDictBase | None = None, start: float = 0.0, **kwargs: Any) -> TensorDictBase:
        self.resets += 1
        mask = None if tensordict is None else tensordict.get("_reset", None)
        chosen = torch.ones_like(self.count, dtype=torch.bool) if mask is None else mask.reshape(self.count.shape)
        fresh = torch.rand(self.place.shape, generator=self.generator) + start
        self.place = torch.where(chosen, fresh, self.place)
        self.count = torch.where(chosen, 0, self.count)
        return self._shown()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps += 1
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.steps == self.fails_at:
            raise ValueError(f"step {self.steps} is one too many")
        if self.steps == self.dies_at:
            os._exit(3)
        self.actions.append(tensordict["action"])
        noise = torch.rand(self.place.shape, generator=self.generator)
        self.place = self.place + tensordict["action"].detach() + noise
        self.count = self.count + 1
        over = self.count >= self.limit
        odd = (noise.sum(-1, keepdim=True) * 100).long() % 2 == 1
        shown = self._shown()
        shown.update({"reward": noise.sum(-1, keepdim=True), "terminated": over & odd, "truncated": over & ~odd})
        return shown

    def _shown(self) -> TensorDict:
        return TensorDict({"place": self.place.to(self.dtype), "count": self.count.clone()}, self.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        self.seeds.append(seed)
        if seed is not None:
            self.generator.manual_seed(seed)

    def echo(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return (self.limit, *args, *kwargs.items())


class Agents(EnvBase):
    """Two groups of agents with done flags of their own, and none at the root."""

    def __init__(self, limits: tuple[int, int] = (2, 3)) -> None:
        super().__init__()
        self.limits = limits
        self.observation_spec = Composite(
            {f"group{g}": Composite(val=Unbounded((2, 1), dtype=torch.int64), shape=(2,)) for g in (0, 1)}
        )
        self.action_spec = Composite(
            {f"group{g}": Composite(action=Categorical(2, shape=(2,)), shape=(2,)) for g in (0, 1)}
        )
        self.reward_spec = Composite({f"group{g}": Composite(reward=Unbounded((2, 1)), shape=(2,)) for g in (0, 1)})
        self.done_spec = Composite(
            {f"group{g}": Composite(done=Categorical(shape=(2, 1), **FLAG), shape=(2,)) for g in (0, 1)}
        )
        self.val = torch.zeros(2, 2, 1, dtype=torch.int64)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        for g in (0, 1):
            mask = None if tensordict is None else tensordict.get((f"group{g}", "_reset"), None)
            self.val[g] = 0 if mask is None else torch.where(mask.reshape(2, 1), 0, self.val[g])
        return TensorDict({f"group{g}": TensorDict({"val": self.val[g].clone()}, [2]) for g in (0, 1)}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = TensorDict({}, [])
        for g in (0, 1):
            self.val[g] += 1 + tensordict[f"group{g}", "action"].reshape(2, 1)
            done = self.val[g] >= self.limits[g]
            out[f"group{g}"] = TensorDict(
                {"val": self.val[g].clone(), "reward": self.val[g].float(), "done": done}, [2]
            )
        return out

    def _set_seed(self, seed: int | None) -> None:
        pass


class Adder(EnvBase):
    """Keeps its state in the data: x becomes x + action."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.state_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        start = None if tensordict is None else tensordict.get("x", None)
        return TensorDict({"x": torch.zeros(1) if start is None else start + 100}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        x = tensordict["x"] + tensordict["action"]
        return TensorDict({"x": x, "reward": x * 2, "done": x > 1000}, [])

    def _set_seed(self, seed: int | None) -> None:
        pass


class Story(EnvBase):
    """Observes a text and a list of numbers that grows."""

    def __init__(self, word: Any = "step") -> None:
        super().__init__()
        self.word = word
        self.observation_spec = Composite(
            text=NonTensor(shape=(), example_data="x"), tokens=Unbounded((-1,), dtype=torch.int64), n=Unbounded((1,))
        )
        self.action_spec = Categorical(2, shape=(1,))
        self.reward_spec = Unbounded((1,))
        self.n = 0

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        self.n = 0
        return self._told()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.n += 1
        done = torch.tensor([self.n >= 3])
        return self._told().update({"reward": torch.ones(1), "done": done})

    def _told(self) -> TensorDict:
        told = TensorDict({"tokens": torch.arange(self.n + 1), "n": torch.tensor([float(self.n)])}, [])
        return told.set(
            "text", NonTensorData((self.word, self.n) if not isinstance(self.word, str) else f"{self.word} {self.n}")
        )

    def _set_seed(self, seed: int | None) -> None:
        pass


def assert_same(a: Any, b: Any, path: str = "") -> None:
    """Hold two TensorDicts against each other: batch sizes, keys, dtypes, shapes and values of all rows."""
    assert a.batch_size == b.batch_size, path
    assert set(a.keys()) == set(b.keys()), path
    for key in list(a.keys()):
        here = f"{path}/{key}"
        try:
            x, y = a.get(key), b.get(key)
        except RuntimeError:  # shapes differ from row to row
            x = y = None
        if x is None:
            for i in range(a.batch_size[0]):
                assert_same(a[i].select(key), b[i].select(key), f"{here}[{i}]")
        elif isinstance(x, torch.Tensor):
            assert x.dtype is y.dtype, here
            assert x.shape == y.shape, here
            assert torch.equal(x, y), f"{here}: {x} and {y}"
        elif isinstance(x, (NonTensorData, NonTensorStack)):
            assert x.tolist() == y.tolist(), here
        else:
            assert_same(x, y, here)


class Reader(EnvBase):
    """Counts from what it finds in the data of a step, which it has not declared to read; ends beyond 3."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.reward_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDict:
        return TensorDict({"x": torch.zeros(1)}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDict:
        assert not tensordict["done"].any()
        x = tensordict["x"] + 1 + tensordict.get("extra", torch.zeros(1))
        return TensorDict({"x": x, "reward": torch.ones(1), "done": x > 3}, [])

    def _set_seed(self, seed: int | None) -> None:
        pass
