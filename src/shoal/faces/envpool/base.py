"""What the three faces share: a pool behind EnvPool's calls.

A face adds how a batch looks (``_step_result``, ``_reset_result``); everything else is the same for all:

    reset, step, send, recv      take actions and ids in EnvPool's forms, and return one batch
    config, spec, len, repr      what it was made with
    render                       pictures of single envs

The pool checks every call. The first step of an env is its reset, as in EnvPool. Where several play in one env, there
is a ``PlayerPool`` between the face and the pool; whether there is one is decided once.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from shoal.adapters.dm_env import TELLS_DISCOUNT
from shoal.errors import ArgumentError, NothingInFlight, WrongShape
from shoal.faces.envpool.actions import ActionReader, in_envpools_words, listed
from shoal.faces.envpool.arrayspec import INT32
from shoal.faces.envpool.dialect import info_types
from shoal.faces.envpool.infos import NO_ALIASES, InfoMaker
from shoal.faces.envpool.opening import open_pool, unsigned
from shoal.faces.envpool.player_actions import PlayerActionReader
from shoal.faces.envpool.players import PlayerInfoMaker, PlayerPool, player_spec
from shoal.faces.envpool.rendering import draw
from shoal.faces.envpool.window import Window
from shoal.readiness import masked_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batch import Batch
    from shoal.faces.envpool.spec import EnvSpec
    from shoal.faces.envpool.xla import Functions
    from shoal.pool import Pool
    from shoal.readiness import Ids, Options
    from shoal.seeding import Seed
    from shoal.stats import PoolStats


class EnvPool:
    """A pool with EnvPool's interface.

    Attributes:
        pool: The pool behind it.
        spec: What it was made from.
        num_envs: How many envs there are.
        is_async: Whether ``recv`` returns fewer rows than there are envs.
        observation_space: The observation space of one env, or of one player where there are several.
        action_space: The action space of one env, or of one player.
        closed: Whether it was closed.
        window: The window for the env that is to be shown, if there is one and it does not show itself.
    """

    env_type = ""

    def __init__(self, spec: EnvSpec) -> None:
        self.pool: Pool = open_pool(spec)
        self.spec: Any = spec
        self.num_envs = self.pool.num_envs
        self.is_async = self.pool.is_async
        self.observation_space = spec.observation_space
        self.action_space = spec.action_space
        self.closed = False
        self.window = Window(spec.task.id) if spec.needs_window else None
        self._seat(spec)
        self._given = spec.observation_form.given
        # How many batches may have to be received before that of the next step.
        self._ahead = 0
        # Whether a batch without rows is due, for a send for nobody; it comes when nothing is under way.
        self._is_empty_due = False
        # Actions of type ``_exact`` are passed on as they are; those of type ``_narrow`` fit into it.
        tree = self.pool.spec.action
        is_plain = tree.is_single and not self.is_async and not self.pool.spec.players
        self._exact = tree.leaves[0].dtype if is_plain else None
        self._narrow = INT32 if self._exact == np.int64 else None
        self._pool_step = self._source.step

    def _seat(self, spec: EnvSpec) -> None:
        """Choose where batches come from, and what reads actions and makes infos."""
        core = self.pool.spec
        self._source: Pool | PlayerPool = self.pool
        if not core.players:
            self._actions = ActionReader(core.action, self.num_envs)
            aliases = NO_ALIASES if spec.native_kind is None else spec.native_kind.info_aliases
            tells_discount = bool(core.metadata.get(TELLS_DISCOUNT))
            form, types = spec.observation_form, info_types(spec.task)
            self._info = InfoMaker(core.observation, form, aliases, types, tells_discount=tells_discount)
            return
        self._source = table = PlayerPool(self.pool)
        self._actions = PlayerActionReader(core, table.seats)
        self._info = PlayerInfoMaker(player_spec(core).observation, spec.observation_form)

    # ------------------------------------------------------------------ EnvPool's calls

    def reset(self, env_id: Ids = None, *, seed: Seed = None, options: Options = None) -> Any:
        """Reset all envs, or those in ``env_id``, and return all their rows, even in an asynchronous pool.

        Whatever was under way for them is dropped.

        Args:
            env_id: Which envs; all by default.
            seed: One int (env ``i`` gets ``seed + i``) or one seed per env; None lets the envs go on as they are.
            options: May have ``"reset_mask"``, an array of bools, or of zeros and ones, that says which envs; other
                options are passed on to the env's own ``reset``.
        """
        env_id = listed(env_id)
        if options:
            seed, options, env_id = self._read_options(seed, dict(options), env_id)
        if _is_nobody(env_id):
            return self._reset_result(self._source.latest([]))
        batch = self._source.reset(unsigned(seed, env_id, self.num_envs), options or None, env_id)
        if env_id is None:
            self._ahead, self._is_empty_due = 0, False
        return self._reset_result(batch)

    def step(self, action: Any, env_id: Ids = None) -> Any:
        """Send actions and receive a batch: ``send`` and ``recv`` in one."""
        try:
            # What most loops do all day needs no more than a check of the type.
            if env_id is None and action.__class__ is ndarray and action.ndim and not self._ahead:
                dtype = action.dtype
                if dtype is self._exact:
                    return self._step_result(self._pool_step(action))
                if dtype is self._narrow:
                    return self._step_result(self._pool_step(action.astype(self._exact)))
            if self._ahead or self.is_async:
                self.send(action, env_id)
                return self.recv()
            actions, ids = self._actions(action, env_id)
            if _is_nobody(ids, actions):
                return self._step_result(self._source.latest([]))
            return self._step_result(self._pool_step(actions, ids))
        except WrongShape as error:
            raise in_envpools_words(error) from None

    def send(self, action: Any, env_id: Ids = None) -> None:
        """Start one step for each env, or for those in ``env_id``.

        Where several play in an env, there is one action for each player row of its last batch.
        """
        try:
            actions, ids = self._actions(action, env_id)
            if _is_nobody(ids, actions):
                self._is_empty_due = True
                return
            self._source.send(actions, ids)
            self._ahead += 1
        except WrongShape as error:
            raise in_envpools_words(error) from None

    def recv(
        self,
        reset: bool = False,
        return_info: bool = True,
        *,
        timeout: float | None = None,
        min_batch: int | None = None,
        max_wait: float | None = None,
    ) -> Any:
        """Wait for the next batch, in the form of ``step``, or with ``reset`` in that of ``reset``.

        Args:
            reset: Whether the rows are those of a reset.
            return_info: Whether rows of a reset come with an info, where the face leaves the choice.
            timeout: Seconds until ``RecvTimeout``; nothing is lost by it.
            min_batch: Settle for this many rows ...
            max_wait: ... once this many seconds have passed.

        Raises:
            NothingInFlight: If nothing was sent that could have a result.
        """
        try:
            batch = self._source.recv(timeout, min_batch, max_wait)
        except NothingInFlight:
            self._ahead = 0
            if not self._is_empty_due:
                raise
            self._is_empty_due = False
            batch = self._source.latest([])
        self._ahead = max(0, self._ahead - 1)
        return self._received_reset(batch, return_info) if reset else self._step_result(batch)

    def async_reset(self) -> None:
        """Start resetting all envs; ``recv`` returns their rows. Whatever was under way is dropped."""
        self._source.async_reset()
        self._ahead, self._is_empty_due = 1, False

    def render(self, env_ids: int | Sequence[int] | None = None, camera_id: int | None = None) -> Any:
        """Pictures of envs, ``uint8 [len(env_ids), height, width, 3]``; of ``render_env_id`` by default.

        In the mode ``"human"`` the env is shown in a window, and None is returned.

        Raises:
            StateError: If the pool was made without a ``render_mode``.
        """
        return draw(self, env_ids, camera_id)

    def xla(self) -> Functions:
        """``(handle, recv, send, step)`` for use inside compiled JAX code; see ``shoal.faces.envpool.xla``."""
        from shoal.faces.envpool.xla import xla_functions

        return xla_functions(self)

    def example(self) -> Any:
        """A batch in the form of ``step``, with the latest rows of the envs (zeros before their first reset)."""
        return self._step_result(self._source.latest(range(self.pool.batch_size)))

    def seed(self, seed: Any = None) -> None:
        """Do nothing but warn: seeds are given to ``make`` or ``reset``."""
        warnings.warn("seed() has no effect: pass seed to make() or to reset()", UserWarning, stacklevel=2)

    def close(self, **kwargs: Any) -> None:
        """End all envs and workers."""
        self.pool.close()
        if self.window is not None:
            self.window.close()
        self.closed = True

    def stats(self) -> PoolStats:
        """What the pool has done so far."""
        return self.pool.stats()

    # ------------------------------------------------------------------ what it is

    @property
    def config(self) -> dict[str, Any]:
        """All keys and values, in a fresh dict."""
        return dict(self.spec.settings.config)

    @property
    def all_env_ids(self) -> npt.NDArray[np.int32]:
        """The ids of all envs."""
        return np.arange(self.num_envs, dtype=np.int32)

    def __len__(self) -> int:
        """How many envs there are."""
        return self.num_envs

    def __repr__(self) -> str:
        config = ", ".join(f"{key}={value!r}" for key, value in self.spec.settings.config.items())
        return f"{type(self).__name__}({config})"

    __str__ = __repr__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        from shoal.faces.envpool.doors import make

        # A pool cannot be in two places: the copy is a fresh pool made from the same spec.
        return make, (self.spec, self.env_type)

    # ------------------------------------------------------------------ for the faces

    def _step_result(self, batch: Batch) -> Any:
        raise NotImplementedError

    def _reset_result(self, batch: Batch) -> Any:
        raise NotImplementedError

    def _received_reset(self, batch: Batch, return_info: bool) -> Any:
        return self._reset_result(batch)

    def _read_options(self, seed: Any, options: dict[str, Any], env_id: Ids) -> tuple[Any, dict[str, Any], Any]:
        mask = options.pop("reset_mask", None)
        known = self.spec.task.reset_options
        if known is not None and (unknown := sorted(options.keys() - set(known))):
            raise ArgumentError(f"options: {unknown} are not known; there are {['reset_mask', *known]}")
        if mask is None:
            return seed, options, env_id
        if env_id is not None:
            raise ArgumentError("options['reset_mask'] and env_id were both given: one of them is enough")
        chosen = masked_ids(_as_bools(mask), self.num_envs)
        if np.ndim(seed) == 1 and len(seed) == self.num_envs:
            seed = [seed[i] for i in chosen]
        return seed, options, chosen


def _as_bools(mask: Any) -> npt.NDArray[Any]:
    """A mask of zeros and ones as bools; anything else as it is."""
    array = np.asarray(mask)
    is_binary = array.dtype.kind in "iu" and ((array == 0) | (array == 1)).all()
    return array.astype(np.bool_) if is_binary else array


def _is_nobody(env_id: Ids, actions: Any = ()) -> bool:
    """Whether an empty list of ids was given, and no actions with it: the batch then has no rows."""
    return env_id is not None and np.shape(env_id) == (0,) and not len(actions)
