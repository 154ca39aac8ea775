"""Where the envs of a batched env live, and how they are reached.

    InProcess   the envs themselves, one after another in this thread: tensors pass as they are, gradients included
    OnPool      a shoal pool, whose envs are in threads or worker processes: data passes as rows of bytes

In-process envs are not put on the pool's serial engine: it hands out copies of arrays, so nothing could be
differentiated through it, and where there is nothing to wait for and no boundary to cross, it has nothing to offer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from shoal.adapters.tensordict_env import APPLY, Wish
from shoal.errors import FaultError, NothingInFlight, TensorEnvError
from shoal.faces.torchrl.batched.crossing import Traffic, crossings_of
from shoal.faces.torchrl.batched.forms import Forms, as_declared
from shoal.faces.torchrl.batched.presets import PRESETS, carried_keys, presets_of
from shoal.faces.torchrl.batched.stacking import stack_rows
from shoal.faces.torchrl.env.keys import data_keys, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.metadata import EnvMetaData
    from shoal.pool import Pool

    Following = tuple[list[int], TensorDictBase | None]

# What data may hold that is for a batched env or a pool itself, and for none of its envs.
_OF_CALLER = frozenset({"next", "_step", "env_index"})


class Host(Protocol):
    """Running envs, by number.

    Attributes:
        device: Where data is wanted.
        reads_resets: Whether envs may read what a reset is given.
    """

    device: torch.device | None
    reads_resets: bool

    def step(self, ids: Sequence[int], td: TensorDictBase) -> TensorDictBase:
        """Step some envs, one row of ``td`` each; return what they have as "next", stacked in the same order."""

    def step_and_maybe_reset(self, ids: Sequence[int], td: TensorDictBase) -> tuple[TensorDictBase, Following] | None:
        """Like ``step``, but reset each env that is done; also return which rows those are, and their first data.

        Returns None if the host has no shorter way than a step and a reset.
        """

    def reset(
        self, ids: Sequence[int], given: Sequence[TensorDictBase | None], kwargs: Sequence[dict[str, Any]]
    ) -> TensorDictBase:
        """Reset some envs, each with what it is given; return their first data, stacked in the same order."""

    def apply(self, ids: Sequence[int], function: Callable[..., Any], each: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function with each env and arguments of its own."""

    def close(self) -> None:
        """Close the envs."""


class OnPool:
    """Envs behind a pool.

    Args:
        make_pool: Makes the pool, given one crossing per env and whether any data goes beside the rows.
        metas: What each env is.
        device: Where data is wanted.
        all_loose: Send nothing in rows.
        stack: How rows are put together; see ``Traffic``.
    """

    reads_resets = True

    def __init__(
        self,
        make_pool: Callable[[Sequence[Any], bool], Pool],
        metas: Sequence[EnvMetaData],
        device: torch.device | None,
        *,
        all_loose: bool = False,
        stack: str = "as_alike",
    ) -> None:
        crossings = crossings_of(metas, all_loose=all_loose)
        self.traffic = Traffic(metas, crossings, device, stack, self._hand_over)
        self.pool = make_pool(crossings, self.traffic.has_loose)
        # Whether an env was reset before it is stepped is its caller's business here, not the pool's.
        self.pool.reset(options={"as_is": True})
        self._all_ids = list(range(len(metas)))

    @property
    def device(self) -> torch.device | None:
        """Where data is wanted."""
        return self.traffic.device

    @device.setter
    def device(self, device: torch.device | None) -> None:
        self.traffic.device = device

    def _env_id(self, ids: Sequence[int]) -> list[int] | None:
        return None if list(ids) == self._all_ids else list(ids)

    def step(self, ids: Sequence[int], td: TensorDictBase) -> TensorDictBase:
        """Step some envs."""
        return self.traffic.unpack(self._stepped(ids, td, Wish.STEP), is_first=False)

    def step_and_maybe_reset(self, ids: Sequence[int], td: TensorDictBase) -> tuple[TensorDictBase, Following]:
        """Step some envs, and reset those that are done, in one exchange."""
        batch = self._stepped(ids, td, Wish.STEP_AND_MAYBE_RESET)
        return self.traffic.unpack(batch, is_first=False), self.traffic.unpack_following(batch)

    def _stepped(self, ids: Sequence[int], td: TensorDictBase, wish: Wish) -> Any:
        rows = self.traffic.pack(td, ids, wish)
        try:
            return self.pool.step(rows, self._env_id(ids))
        except FaultError as error:
            self._drop_rows()
            raise told(error) from error.__cause__

    def _hand_over(self, ids: Sequence[int], presets: list[dict[Any, Any]]) -> None:
        """Give envs what is already under ``"next"`` before they step."""
        try:
            self.pool.set_attr(PRESETS, presets, list(ids))
        except FaultError as error:
            raise told(error) from error.__cause__

    def reset(
        self, ids: Sequence[int], given: Sequence[TensorDictBase | None], kwargs: Sequence[dict[str, Any]]
    ) -> TensorDictBase:
        """Reset some envs."""
        try:
            batch = self.pool.reset(options=self.wishes(given, kwargs), env_id=self._env_id(ids))
        except FaultError as error:
            self._drop_rows()
            raise told(error) from error.__cause__
        return self.traffic.unpack(batch, is_first=True)

    def wishes(
        self, given: Sequence[TensorDictBase | None], kwargs: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any] | None] | None:
        """The options of a reset, one per env; None if no env has any."""
        options: list[dict[str, Any] | None] = []
        for td, more in zip(given, kwargs, strict=True):
            entries = {} if td is None else self._entries_of_reset(td)
            own = ({"entries": entries} if entries else {}) | ({"kwargs": more} if more else {})
            options.append(own or None)
        return options if any(options) else None

    def _entries_of_reset(self, td: TensorDictBase) -> dict[Any, Any]:
        """What an env is given; nothing if that would only tell it to reset as a whole."""
        keys = [key for key in data_keys(td) if path_of(key)[0] not in _OF_CALLER]
        if all(path_of(key)[-1] == "_reset" and bool(td.get(key).all()) for key in keys):
            return {}
        return self.traffic.entries(td, keys)

    def apply(self, ids: Sequence[int], function: Callable[..., Any], each: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function with each env."""
        ask = self.pool.ask
        try:
            if all(args is each[0] for args in each[1:]):
                return list(ask(APPLY, (function, *each[0]), {}, self._env_id(ids)))
            return [ask(APPLY, (function, *args), {}, [i])[0] for i, args in zip(ids, each, strict=True)]
        except FaultError as error:
            raise told(error) from error.__cause__

    def close(self) -> None:
        """Close the pool."""
        self.pool.close()

    def _drop_rows(self) -> None:
        """Forget the rows of the envs that did not fail: the call they belong to has raised."""
        while True:
            try:
                self.pool.recv()
            except NothingInFlight:
                return
            except FaultError:
                continue


def told(error: FaultError) -> FaultError:
    """The same error, with the traceback from the env in its text and not only in its notes."""
    if not error.remote_traceback:
        return error
    whole = type(error)(f"{error}\n\n{error.remote_traceback.rstrip()}", error.where, "")
    for note in getattr(error, "__notes__", ())[1:]:  # the first is that traceback
        whole.add_note(note)
    return whole


class InProcess:
    """Envs in this thread.

    Args:
        envs: The envs.
        device: Where data is wanted.
        is_one_kind: Whether their data can be stacked leaf by leaf.
        holds_specs: Whether what they return is held to their specs; otherwise it is passed on as it is.
    """

    reads_resets = True

    def __init__(
        self, envs: Sequence[Any], device: torch.device | None, *, is_one_kind: bool, holds_specs: bool = True
    ) -> None:
        self.envs = list(envs)
        self.device = device
        self._is_one_kind = is_one_kind
        self._holds_specs = holds_specs
        self._steps = [Forms(*env.output_spec.values()) for env in envs]
        self._firsts = [Forms(env.full_observation_spec, env.full_done_spec) for env in envs]
        self._carried = [carried_keys(env.input_spec, env.output_spec) for env in envs]

    def step(self, ids: Sequence[int], td: TensorDictBase) -> TensorDictBase:
        """Step some envs."""
        rows = []
        for i, given in zip(ids, td.unbind(0), strict=True):
            env = self.envs[i]
            # The whole row: an env may read its last observation, or what a policy has written.
            asked = given.exclude("next")
            if (preset := presets_of(given, self._carried[i])) is not None:
                asked.set("next", preset)
            rows.append(env.step(self._brought(asked, env)).get("next"))
        return self._stacked(ids, rows, self._steps)

    def step_and_maybe_reset(self, ids: Sequence[int], td: TensorDictBase) -> tuple[TensorDictBase, Following] | None:
        """Return None: there is no shorter way here."""
        return None

    def reset(
        self, ids: Sequence[int], given: Sequence[TensorDictBase | None], kwargs: Sequence[dict[str, Any]]
    ) -> TensorDictBase:
        """Reset some envs."""
        rows = []
        for i, td, more in zip(ids, given, kwargs, strict=True):
            env = self.envs[i]
            own = None if td is None else self._brought(td.copy(), env)
            rows.append(env.reset(own, **more))
        return self._stacked(ids, rows, self._firsts)

    def _brought(self, td: TensorDictBase, env: Any) -> TensorDictBase:
        """Data on the device where the env wants it."""
        return td if env.device is None or env.device == td.device else td.to(env.device)

    def _stacked(self, ids: Sequence[int], rows: list[TensorDictBase], forms: Sequence[Forms]) -> TensorDictBase:
        if self._holds_specs:
            rows = [row.select(*forms[i].keys, strict=False) for i, row in zip(ids, rows, strict=True)]
        stacked = stack_rows(rows, lazily=not self._is_one_kind)
        if self._holds_specs:
            stacked = as_declared(ids, rows, stacked, forms)
        if self.device is None:
            return stacked.clear_device_() if stacked.device is not None else stacked
        return stacked if stacked.device == self.device else stacked.to(self.device)

    def apply(self, ids: Sequence[int], function: Callable[..., Any], each: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a function with each env."""
        return [function(self.envs[i], *args) for i, args in zip(ids, each, strict=True)]

    def close(self) -> None:
        """Close the envs; one that fails to close does not keep the others open."""
        failures = []
        for env in self.envs:
            try:
                if not env.is_closed:
                    env.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise TensorEnvError(f"{len(failures)} env(s) could not be closed: {failures[0]}") from failures[0]
