"""The envs of a manager, run by a pool: resets with wishes, steps with any action, rows as timesteps.

actions by env id ─▶ a column, or objects beside it ─▶ pool.step or pool.send
rows ─▶ (env id, timestep)                             what travelled beside the columns is put back in its place
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.adapters.ding_env import ASIDE, ActionForms, Given, MakeDingEnv
from shoal.adapters.ding_timestep import TRUNCATED, told_by
from shoal.arrays import has_true
from shoal.build import make_pool
from shoal.errors import RecvTimeout
from shoal.faces.ding.env import BaseEnvTimestep
from shoal.faces.ding.failures import either_class
from shoal.spec import RawActions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shoal.batch import Batch
    from shoal.faces.ding.config import Settings
    from shoal.faces.ding.seeds import Wish

_CLOSE_TIMEOUT_S = 2.0
_QUICK_RESET_S = 0.002  # resets that take longer are not made part of a step
_TOLD_OF_FAULTS = {"kind", "message", "incarnation", "attempts"}
# ``_new(BaseEnvTimestep, fields)`` takes half the time that calling the class does.
_new: Callable[[type[BaseEnvTimestep], Iterable[Any]], BaseEnvTimestep] = tuple.__new__


class Runner:
    """The envs between ``launch`` and ``close``.

    Args:
        env_fns: One function per env.
        spaces: Their observation and action space.
        settings: Deadlines, retries, start method.
        engine: Where they run.
        replay_paths: Where each env is to keep its replays; None if it keeps none.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Any]],
        spaces: tuple[Any, Any],
        settings: Settings,
        *,
        engine: str,
        replay_paths: Sequence[str | None],
    ) -> None:
        factories = [
            MakeDingEnv(env_fn, *spaces, settings.step_attempts, path)
            for env_fn, path in zip(env_fns, replay_paths, strict=True)
        ]
        self.num_envs = len(factories)
        self._has_kwargs: set[int] = set()
        # Envs whose timesteps have a class of their own, with that class.
        self._kinds: dict[int, Any] = {}
        self._all_ids = list(range(self.num_envs))
        forms = ActionForms(spaces[1])
        self._pack: Callable[[list[Any]], Any] = forms.pack if forms.has_column else list
        self.pool = make_pool(
            factories,
            engine=engine,
            name=getattr(env_fns[0], "__name__", type(env_fns[0]).__name__),
            num_workers=settings.workers_for(self.num_envs) if engine == "process" else None,
            start_method=_START_METHODS.get(settings.context, settings.context),
            autoreset="same_step" if settings.begins_in_steps else "disabled",
            quick_reset_s=float("inf") if settings.resets_inside else _QUICK_RESET_S,
            check="off",  # the adapter makes sure that rows fit
            on_nan="pass",
            on_fault=settings.on_fault,
            allow_pickle=True,
            construct_timeout=settings.construct_timeout,
            reset_timeout=settings.reset_timeout,
            step_timeout=settings.step_timeout,
            close_timeout=_CLOSE_TIMEOUT_S,
            bounded_actions=False,
        )
        self._tree = self.pool.spec.observation

    # ------------------------------------------------------------------ commands

    def begin_reset(self, wishes: Mapping[int, Wish]) -> None:
        """Start resetting envs, dropping whatever they were doing."""
        told = {i: self._news_of(i, wish) for i, wish in wishes.items()}
        plain = [i for i, options in told.items() if options is None]
        if plain:
            self.pool.async_reset(env_id=plain)
        for i, options in told.items():
            if options is not None:
                seed = wishes[i].seed
                self.pool.async_reset(None if seed is None else [seed], options, [i])

    def _news_of(self, env_id: int, wish: Wish) -> dict[str, Any] | None:
        """What to tell an env. It remembers its keywords, so an empty set is sent only to clear earlier ones."""
        if wish.kwargs:
            self._has_kwargs.add(env_id)
        elif env_id in self._has_kwargs:
            self._has_kwargs.discard(env_id)
            wish = replace(wish, kwargs={})
        else:
            wish = replace(wish, kwargs=None)
        return wish.options

    def renew(self, ids: Sequence[int]) -> None:
        """Have envs that were lost built anew with their next reset."""
        self.pool.renew(ids)

    def begin_step(self, actions: Mapping[int, Any]) -> None:
        """Start one step per env."""
        given = [*actions.values()]
        packed = self._pack(given)
        self.pool.send(_beside(given) if packed is None else packed, [*actions])

    def step(self, ids: list[int], actions: Mapping[int, Any]) -> Batch:
        """Step envs of a pool in which nothing is under way, and wait for all of them."""
        given = [*actions.values()]
        packed = self._pack(given)
        return self.pool.step(_beside(given) if packed is None else packed, None if ids == self._all_ids else ids)

    def receive(self, at_least: int, timeout: float | None = None) -> Batch | None:
        """Wait for rows; None if not enough arrived in time."""
        try:
            return self.pool.recv_ready(at_least=at_least, timeout=timeout)
        except RecvTimeout:
            return None

    # ------------------------------------------------------------------ rows

    def observations(self, batch: Batch) -> list[Any]:
        """The observation of every row, as it came from its env."""
        rows = self._rows_of(batch.obs)
        for row, info in batch.infos:
            aside = info.get(ASIDE)
            if aside is not None and "obs" in aside:
                rows[row] = aside["obs"]
        return rows

    def _rows_of(self, obs: Any) -> list[Any]:
        if self._tree.is_single:
            return list(obs)
        leaves = self._tree.flatten(obs)
        return [self._tree.unflatten(row) for row in zip(*leaves, strict=True)]

    def timesteps(self, batch: Batch, ids: Sequence[int]) -> tuple[dict[int, Any], Sequence[int], Mapping[int, Any]]:
        """The timestep of every row, by env id; ``ids`` are the envs of the rows.

        With them, the envs whose row ends an episode or has an info; and, for envs that have begun the next episode,
        its first observation.
        """
        rewards = batch.reward.astype(np.float32)[:, None]
        rows = batch.obs if self._tree.is_single else self._rows_of(batch.obs)
        new, kind = _new, BaseEnvTimestep
        made: dict[int, Any] = {
            # The ids come first: arrays that are asked for one more row than they have take long to say so.
            i: new(kind, (obs, reward, False, {}))
            for i, obs, reward in zip(ids, rows, rewards)  # noqa: B905
        }
        if batch.infos or batch.finals or self._kinds or has_true(batch.terminated) or has_true(batch.truncated):
            return made, *self._amend(made, batch, ids)
        return made, (), {}

    def _amend(self, made: dict[int, Any], batch: Batch, ids: Sequence[int]) -> tuple[Sequence[int], Mapping[int, Any]]:
        """Replace the timesteps that say more than a row of numbers does."""
        dones, infos, finals = (batch.terminated | batch.truncated).tolist(), dict(batch.infos), batch.finals
        ends, odd, begun = [], {}, {}
        for row, done in enumerate(dones):
            if not done and row not in infos:
                continue
            i = ids[row]
            obs, reward, _, info = made[i]
            info = infos.get(row, info)
            if row in finals:
                aside = info.get(ASIDE)
                begun[i] = obs if aside is None else aside["obs"]
                obs, info = finals[row]
            made[i] = _new(BaseEnvTimestep, (obs, reward, done, info))
            ends.append(i)
            if ASIDE in info or "fault" in info:
                odd[i] = info
        if odd or self._kinds:
            self._put_back(made, odd)
        return ends, begun

    def _put_back(self, made: dict[int, Any], infos: Mapping[int, dict[str, Any]]) -> None:
        """Put what travelled in infos in its place, and give timesteps the class that their env gave them."""
        for i, info in infos.items():
            aside = info.get(ASIDE)
            if aside is not None and "kind" in aside:  # so says an env that changes its class
                self._kinds[i] = aside.pop("kind")
        for i in made.keys() & self._kinds.keys():
            made[i] = self._kinds[i]._make(made[i])
        for i, info in infos.items():
            made[i] = _completed(made[i], info)

    # ------------------------------------------------------------------ extras

    def read(self, name: str) -> list[Any]:
        """An attribute of every env."""
        with either_class():
            return list(self.pool.call("read", name))

    def call(self, env_id: int, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a method of one env returns."""
        with either_class():
            return self.pool.call("call", name, args, kwargs, env_id=[env_id])[0]

    def seed(self, env_id: int, seed: int, dynamic_seed: bool | None) -> None:
        """Seed an env that goes on with its episode."""
        self.pool.call("seed", seed, dynamic_seed, env_id=[env_id])

    def pictures(self, ids: Sequence[int]) -> dict[int, Any]:
        """What envs look like."""
        if not ids:
            return {}
        with either_class():
            return dict(zip(ids, self.pool.call("picture", env_id=list(ids)), strict=True))

    def failed(self, ids: Iterable[int]) -> list[int]:
        """Which of these envs have the fault that was just raised."""
        faulted = self.pool.faulted
        return [i for i in ids if i in faulted]

    def close(self) -> None:
        """End all envs."""
        self.pool.close()


# DI-engine forks unless told otherwise. Forking is not safe in a process with threads, so here it is only a preference,
# followed where it does no harm; any other method is taken literally.
_START_METHODS: dict[str | None, str | None] = {"fork": "fork?"}


def _beside(actions: Iterable[Any]) -> RawActions:
    """Actions that fit no column."""
    return RawActions(map(Given, actions))


def tells_of_fault(info: Any) -> bool:
    """Whether an info is the pool's report of a fault; envs may use the same key for purposes of their own."""
    fault = told_by(info).get("fault")
    return isinstance(fault, dict) and fault.keys() >= _TOLD_OF_FAULTS


def _completed(timestep: BaseEnvTimestep, info: dict[str, Any]) -> Any:
    """A timestep completed with what came beside its columns, or with the report of a fault."""
    if tells_of_fault(info):
        return timestep._replace(info={**info, "abnormal": True, "err": info["fault"]["message"], TRUNCATED: True})
    if ASIDE not in info:
        return timestep
    aside = info.pop(ASIDE)
    return aside["timestep"] if "timestep" in aside else timestep._replace(**aside)
