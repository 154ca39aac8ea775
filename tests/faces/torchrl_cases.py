"""Envs of TorchRL's dialect for the tests of EnvBase, rollouts and transforms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict, TensorDictBase

from shoal.faces.torchrl import Categorical, Composite, EnvBase, Unbounded

if TYPE_CHECKING:
    from collections.abc import Sequence

BOOL = torch.bool
I64 = torch.int64


class Counter(EnvBase):
    """Counts steps and ends at ``limit``; honours masks of resets and steps."""

    def __init__(self, limit: int = 3, batch_size: Sequence[int] = (), **kwargs: Any) -> None:
        super().__init__(batch_size=torch.Size(batch_size), **kwargs)
        size = self.batch_size
        self.limit = limit
        self.n_steps = 0
        self.n_resets = 0
        self.observation_spec = Composite(
            count=Unbounded((*size, 1), dtype=I64, device=self.device), shape=size, device=self.device
        )
        self.action_spec = Categorical(2, shape=(*size, 1), device=self.device)
        self.count = torch.zeros((*size, 1), dtype=I64)

    def _reset(self, tensordict: TensorDictBase | None = None, start: int = 0, **kwargs: Any) -> TensorDictBase:
        self.n_resets += 1
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            self.count = torch.full_like(self.count, start)
        else:
            self.count = torch.where(mask.reshape(self.count.shape), torch.zeros_like(self.count), self.count)
        return TensorDict({"count": self.count.clone()}, self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.n_steps += 1
        mask = tensordict.get("_step", None)
        moved = torch.ones_like(self.count) if mask is None else mask.reshape(self.count.shape).to(I64)
        self.count = self.count + moved
        reward = torch.ones((*self.batch_size, 1))
        entries = {"count": self.count.clone(), "reward": reward, "done": self.count >= self.limit}
        return TensorDict(entries, self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.seed_received = seed


class Adder(EnvBase):
    """Has no state and no batch size of its own: x becomes x + action."""

    batch_locked = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.state_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Unbounded((1,))

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        shape = torch.Size() if tensordict is None else tensordict.batch_size
        return TensorDict({"x": torch.zeros(*shape, 1)}, shape)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        x = tensordict["x"] + tensordict["action"]
        return TensorDict({"x": x, "reward": torch.ones_like(x), "done": x > 100}, tensordict.batch_size)

    def _set_seed(self, seed: int | None) -> None:
        pass


class TwoAgents(EnvBase):
    """Two groups of two components with done flags of their own, and one for all if asked for.

    After every step, ``ends`` says which components of the first group have ended.
    """

    def __init__(self, root_done: bool = False, ends: Sequence[bool] = (False, False), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root_done = root_done
        self.ends = ends
        self.masks: list[Any] = []

        def each(**leaves: Any) -> dict[str, Composite]:
            return {
                agent: Composite({name: leaf.clone() for name, leaf in leaves.items()}, shape=(2,))
                for agent in ("agent0", "agent1")
            }

        self.observation_spec = Composite(each(val=Unbounded((2,), dtype=I64)))
        self.action_spec = Composite(each(action=Categorical(2, shape=(2,))))
        self.reward_spec = Composite(each(reward=Unbounded((2, 1))))
        done: dict[str, Any] = dict(each(done=Categorical(2, shape=(2, 1), dtype=BOOL)))
        if root_done:
            done["done"] = Categorical(2, shape=(1,), dtype=BOOL)
        self.done_spec = Composite(done)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        given = {} if tensordict is None else dict(tensordict.items(True, True))
        self.masks.append({key: value.flatten().tolist() for key, value in given.items() if "_reset" in key})
        return self.observation_spec.zero()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = self.observation_spec.zero()
        for agent in ("agent0", "agent1"):
            out[agent, "val"] = out[agent, "val"] + 5
            out[agent, "reward"] = torch.ones(2, 1)
        out["agent0", "done"] = torch.tensor(self.ends).unsqueeze(-1)
        return out

    def _set_seed(self, seed: int | None) -> None:
        pass


class Flags(EnvBase):
    """Returns chosen end-of-episode flags, of chosen values and shape."""

    def __init__(self, declared: Sequence[str], emitted: dict[str, bool], flat: bool = False) -> None:
        super().__init__()
        self.emitted = emitted
        self.flag_shape = () if flat else (1,)
        self.observation_spec = Composite(x=Unbounded((1,)))
        self.action_spec = Unbounded((1,))
        self.done_spec = Composite({name: Categorical(2, shape=(1,), dtype=BOOL) for name in declared})

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        return TensorDict({"x": torch.zeros(1)}, [])

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        flags = {name: torch.full(self.flag_shape, value) for name, value in self.emitted.items()}
        return TensorDict({"x": torch.zeros(1), "reward": torch.zeros(()), **flags}, [])

    def _set_seed(self, seed: int | None) -> None:
        pass


def ints(values: torch.Tensor) -> list[Any]:
    """All values in a row."""
    return values.reshape(-1).tolist()


def rows(values: torch.Tensor) -> list[Any]:
    """Values without their last dim, as nested lists."""
    return values.squeeze(-1).tolist()


class Talkative(Counter):
    """Returns more than it declares."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        return super()._step(tensordict).set("extra", torch.ones((*self.batch_size, 1)))


class TalkativeAgents(TwoAgents):
    """Returns more than it declares, at the root and in a group."""

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = super()._step(tensordict).set("extra", torch.ones(1))
        return out.set(("agent0", "extra"), torch.ones(2))
