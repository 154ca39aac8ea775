"""Several envs as one: what batched envs and views of them have in common.

The first dim of the batch has one row per env. A step or a reset with a mask goes to the envs in it, and no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError, TensorEnvError
from shoal.faces.torchrl.batched.crossing import are_alike
from shoal.faces.torchrl.batched.remote import load_state_of, seed_env, state_of
from shoal.faces.torchrl.batched.stacking import put, renewed, spread
from shoal.faces.torchrl.env.seeds import seed_chain
from shoal.faces.torchrl.env_base import EnvBase
from shoal.faces.torchrl.fast_td import entries_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tensordict import TensorDictBase

    from shoal.faces.torchrl.batched.hosts import Host
    from shoal.faces.torchrl.metadata import EnvMetaData
    from shoal.faces.torchrl.specs import Composite

_GROUPS = {
    "input_spec": ("full_action_spec", "full_state_spec"),
    "output_spec": ("full_observation_spec", "full_reward_spec", "full_done_spec"),
}


class NoEnvs(TensorEnvError, IndexError):
    """A batch was indexed in a way that selects no env."""


class EnvGroup(EnvBase):
    """Envs that live on a host, as one env.

    Args:
        metas: What each env is.
        ids: Their numbers on the host.
        device: Where data is expected and returned.
    """

    def __init__(self, metas: Sequence[EnvMetaData], ids: Sequence[int], device: Any = None) -> None:
        if not metas:
            raise NoEnvs("a batch needs an env at least, and none was chosen")
        sizes = {tuple(meta.batch_size) for meta in metas}
        if len(sizes) > 1:
            raise TensorEnvError(f"the envs of a batch need one batch size, and these have {sorted(sizes)}")
        # Each env checks its own resets, as its own ``allow_done_after_reset`` says.
        size = torch.Size((len(ids), *sizes.pop()))
        super().__init__(device=device, batch_size=size, allow_done_after_reset=True)
        own = self.__dict__
        own["_metas"] = list(metas)
        own["_ids"] = list(ids)
        # Data whose shapes vary differs from row to row sooner or later, so it is kept in lazy stacks from the start.
        own["_are_alike"] = are_alike(metas) and not metas[0].has_dynamic_specs
        for group, names in _GROUPS.items():
            for name in names:
                specs = [meta.specs[group].get(name, None) for meta in metas]
                if all(spec is not None for spec in specs):
                    setattr(self, name, joined(specs, self.device))

    def _running(self) -> Host:
        """The host, with its envs started."""
        raise NotImplementedError

    # ------------------------------------------------------------------ steps

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        chosen = self._chosen(tensordict)
        host = self._running()
        if chosen is None:
            return host.step(self._ids, tensordict)
        part = host.step([self._ids[place] for place in chosen], tensordict[torch.as_tensor(chosen)])
        return self._spread(part, chosen, with_reward=True)

    def _chosen(self, td: TensorDictBase) -> list[int] | None:
        """The places that a partial step goes to, None for all of them."""
        mask = td.get("_step", None)
        if mask is None:
            return None
        rows = mask.reshape(len(self._ids), -1)
        some, every = rows.any(-1), rows.all(-1)
        if not torch.equal(some, every):
            raise ArgumentError("'_step': an env that is a batch itself is stepped as a whole or not at all")
        places: list[int] = some.nonzero().flatten().tolist()
        return None if len(places) == len(self._ids) else places

    def step_and_maybe_reset(self, tensordict: TensorDictBase) -> tuple[TensorDictBase, TensorDictBase]:
        """Make a step, and reset the envs that have ended.

        Returns:
            The same TensorDict as `step`, with the last data of the episode under ``"next"``, and the root of the next
            step, where new episodes have replaced those that ended.
        """
        entries = entries_of(tensordict)
        if entries is None or "next" in entries or "_step" in entries or self.run_type_checks:
            return super().step_and_maybe_reset(tensordict)
        plan = self._plan()
        plan.check_batch(tensordict, "step_and_maybe_reset")
        stepped = self._running().step_and_maybe_reset(self._ids, tensordict)
        if stepped is None:
            return super().step_and_maybe_reset(tensordict)
        following, (places, first) = stepped
        put(tensordict, "next", following)
        root = plan.advance(tensordict)
        if first is not None:
            root = renewed(root, first, places)
        return tensordict, root

    # ------------------------------------------------------------------ resets

    def _reset(
        self,
        tensordict: TensorDictBase | None = None,
        *,
        list_of_kwargs: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> TensorDictBase:
        each = self._kwargs_of_resets(list_of_kwargs, kwargs)
        masks = [] if tensordict is None else self._masks(tensordict)
        places = self._resetting(masks)
        if not places:
            return self._blanks()
        host = self._running()
        fresh = host.reset(
            [self._ids[place] for place in places],
            [self._given(tensordict, masks, place, host) for place in places],
            [each[place] for place in places],
        )
        return fresh if len(places) == len(self._ids) else self._spread(fresh, places)

    def _with_state(self, td: Any, set_state: bool | None, kwargs: dict[str, Any]) -> dict[str, Any]:
        # Whether a state can be set is for each env to say.
        return kwargs if set_state is None else {**kwargs, "set_state": set_state}

    def _kwargs_of_resets(
        self, each: Sequence[Mapping[str, Any]] | None, common: dict[str, Any]
    ) -> list[dict[str, Any]]:
        if each is None:
            return [common] * len(self._ids)
        if len(each) != len(self._ids):
            raise TensorEnvError(f"list_of_kwargs: expected {len(self._ids)} dicts, one per env, got {len(each)}")
        return [{**common, **own} for own in each]

    def _check_reset_masks(self, td: TensorDictBase) -> None:
        self._masks(td)

    def _masks(self, td: TensorDictBase) -> list[tuple[Any, torch.Tensor]]:
        """The masks of a partial reset, by key: the root's alone, or those of all levels."""
        found = [(key, mask) for key in self.reset_keys if (mask := td.get(key, None)) is not None]
        if (root := td.get("_reset", None)) is not None:
            return [("_reset", root)]
        if found and len(found) != len(self.reset_keys):
            missing = [key for key in self.reset_keys if key not in dict(found)]
            raise ArgumentError(f"'_reset': give a mask at every level that has done flags, or none; {missing} missing")
        return found

    def _resetting(self, masks: list[tuple[Any, torch.Tensor]]) -> list[int]:
        if not masks:
            return list(range(len(self._ids)))
        some = torch.zeros(len(self._ids), dtype=torch.bool)
        for _, mask in masks:
            some |= mask.reshape(len(self._ids), -1).any(-1).cpu()
        places: list[int] = some.nonzero().flatten().tolist()
        return places

    def _given(
        self, td: TensorDictBase | None, masks: list[tuple[Any, torch.Tensor]], place: int, host: Host
    ) -> TensorDictBase | None:
        """What an env is given for its reset; None if it reads nothing."""
        if td is None or not host.reads_resets:
            return None
        given = td[place].exclude("next", "_step")
        for key, mask in masks:
            own = mask[place]
            given.set(key, own.unsqueeze(-1) if own.shape == given.batch_size else own)
        return None if given.is_empty() else given

    def _spread(self, rows: TensorDictBase, places: list[int], *, with_reward: bool = False) -> TensorDictBase:
        """Rows of some envs among blank ones."""
        return spread(
            rows,
            places,
            len(self._ids),
            lambda place: self._blank(place, with_reward=with_reward),
            are_alike=self._are_alike,
        )

    def _blank(self, place: int, *, with_reward: bool = False) -> TensorDictBase:
        """What stands in for an env that has not moved, until its old values are put back."""
        written = self._metas[place].specs["output_spec"]
        blank: TensorDictBase = written["full_observation_spec"].zero()
        blank.update(written["full_done_spec"].zero())
        return blank.update(written["full_reward_spec"].zero()) if with_reward else blank

    def _blanks(self) -> TensorDictBase:
        blank: TensorDictBase = self.full_observation_spec.zero()
        return blank.update(self.full_done_spec.zero())

    # ------------------------------------------------------------------ seeds and state

    def set_seed(self, seed: int | None = None, static_seed: bool = False) -> int | None:
        """Seed all envs, each with the next seed of the chain.

        Returns:
            The seed after the last one.
        """
        host = self._running()
        if len(self.batch_size) == 1:
            seeds, following = seed_chain(seed, len(self._ids), static_seed)
            host.apply(self._ids, seed_env, [(own, static_seed) for own in seeds])
            return following
        for i in self._ids:  # one after another: an env that is a batch itself may take several seeds
            (seed,) = host.apply([i], seed_env, [(seed, static_seed)])
        return seed

    def _set_seed(self, seed: int | None) -> None:
        self.set_seed(seed)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The state of every env, as ``worker0``, ``worker1``, ..."""
        states = self._running().apply(self._ids, state_of, [()] * len(self._ids))
        return {f"worker{place}": state for place, state in enumerate(states)}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Give every env its own part of a ``state_dict()``, or, if the state is that of one env, give it to all."""
        if "worker0" in state_dict:
            each = [(state_dict[f"worker{place}"], strict) for place in range(len(self._ids))]
        else:
            each = [(dict(state_dict), strict)] * len(self._ids)
        self._running().apply(self._ids, load_state_of, each)

    def add_truncated_keys(self) -> EnvBase:
        """Refuse: the envs themselves have to have them."""
        raise TensorEnvError("add_truncated_keys: call it on each env, in the function that makes it")


def joined(specs: Sequence[Composite], device: torch.device | None) -> Composite:
    """The spec of several envs: one row per env."""
    first = specs[0]
    if all(spec is first for spec in specs[1:]):
        whole = first.clone().expand(len(specs), *first.shape)
    else:
        whole = torch.stack([spec.clone() for spec in specs], 0)
    return whole if device is None else whole.to(device)
