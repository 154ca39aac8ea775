"""Envs that a native simulator runs, many at once: what shoal expects of such a simulator.

    NativeEnv   a kind of env, with its options; an instance holds no episode
    BatchSim    the simulator of N envs of a kind: reset some, step some, write their rows
    Generators  a generator per env, for simulators that have none of their own

A simulator knows nothing about boundaries: it begins episodes and takes steps. When an episode is cut short, what
happens when one has ended, and what a row says about it is up to whoever runs the simulator (``engines.native``, or a
slot around a simulator of one env).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from shoal.seeding import WORDS, set_words, words_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.seeding import Words
    from shoal.spec import EnvSpec

Array = np.ndarray[Any, Any]
Ids = npt.NDArray[np.int32]
Errors = dict[int, Exception]
Alias = str | float | Callable[[Mapping[str, Array], Array], Array]


@dataclass(frozen=True)
class Columns:
    """Where a simulator writes: one row per env, indexed by env id.

    Attributes:
        obs: The leaves of the observation, in leaf order.
        reward: float64.
        terminated: bool.
        truncated: bool; episodes that the simulator itself cuts short.
        info: The info fields by name.
    """

    obs: Sequence[Array]
    reward: Array
    terminated: Array
    truncated: Array
    info: Mapping[str, Array]


class BatchSim(Protocol):
    """N envs in one simulator, called by one thread at a time, but not always the same one.

    A simulator may also have ``next_episode(ids, out)``, for envs that are not fully reset between episodes: it is
    called in place of ``reset`` when autoreset begins the next episode, and not the caller. And it may have
    ``own_fields``, the names of what it makes different for each env, depending on how many it runs.

    Ids are sorted and unique. ``reset`` and ``step`` return the errors of envs that failed, whose rows are then
    invalid; the other envs have moved all the same. If they raise, that is a fault of every env in the call.

    Attributes:
        ends: Whether episodes can end on their own; only then do steps have to write ``terminated``.
        cuts: Whether the simulator has a time limit of its own; only then do steps have to write ``truncated``.
    """

    ends: bool
    cuts: bool

    def reset(
        self, ids: Ids, seeds: Mapping[int, int], options: Mapping[int, Mapping[str, Any]], out: Columns
    ) -> Errors:
        """Begin an episode in each of these envs; write observations and every info field.

        Envs in ``seeds`` get a new generator first. ``options`` has the options of envs that were given some.
        """

    def step(self, ids: Ids | None, action: Sequence[Array], out: Columns) -> Errors:
        """Take a step in each of these envs, or in all; write observation, reward, flags and every info field.

        ``action`` has one array per leaf of the action space, with a row for every env of the simulator.
        """

    def snapshot(self, ids: Ids) -> dict[str, Array]:
        """The complete state of these envs, generators included, as copies."""

    def restore(self, ids: Ids, state: Mapping[str, Array]) -> None:
        """Put these envs into the states of others."""

    def renew(self, env_id: int) -> None:
        """Make an env as good as new, whatever has become of it; a reset follows."""

    def view(self, env_id: int) -> Any:
        """One env as an object, for calls and attributes; it may have ``render`` and ``np_random``."""

    def close(self) -> None:
        """Let go of everything."""


class OverlappingSim(BatchSim, Protocol):
    """A simulator that can step envs while its caller does something else; one that cannot needs none of this.

    A step that is begun is taken by threads of the simulator's own, and by whoever waits for it. Meanwhile, other envs
    can be reset, stepped and looked at. One thread may begin steps while another waits.
    """

    def overlap(self) -> bool:
        """Get ready to do so; False if these envs cannot be stepped in this way."""

    def begin(self, ids: Ids, action: Sequence[Array]) -> bool:
        """Begin a step of these envs, and return at once; False if they have to be stepped in the other way."""

    def moved(self, wanted: int, wait_s: float | None) -> list[int]:
        """Envs whose steps have been taken, in that order: as many as are wanted, unless time is up or there are none.

        None of these envs is touched any more.
        """

    def finish(self, ids: Ids, action: Sequence[Array], out: Columns) -> Errors:
        """Write the rows of envs that have moved, as ``step`` does."""


class NativeEnv:
    """One kind of env that a native simulator runs: subclasses describe it and make the simulator.

    Attributes:
        max_episode_steps: The time limit.
        reward_threshold: The mean return at which the task counts as solved.
        reset_options: Names that ``reset(options=...)`` may use.
        info_aliases: Info under the names of another library: the name of a field, a number that the other library
            reports with every step, or a function of fields and rewards.
        option_aliases: Further names of options, ``alias -> option``.
        render_mode: What ``render`` does; None if nothing is drawn.
    """

    max_episode_steps: int | None = None
    reward_threshold: float | None = None
    reset_options: ClassVar[tuple[str, ...]] = ()
    info_aliases: Mapping[str, Alias] = {}
    option_aliases: ClassVar[Mapping[str, str]] = {}
    render_mode: str | None = None

    def describe(self, name: str) -> EnvSpec:
        """The contract of one env of this kind, called ``name``."""
        raise NotImplementedError

    def simulate(self, num_envs: int, num_threads: int) -> BatchSim:
        """A simulator of ``num_envs`` envs on at most ``num_threads`` threads, the caller's included."""
        raise NotImplementedError


def is_native(source: Any) -> bool:
    """Whether ``source`` is a class of envs that a native simulator runs.

    Example:
        >>> is_native(NativeEnv), is_native(int)
        (True, False)
    """
    return isinstance(source, type) and issubclass(source, NativeEnv)


class Generators:
    """One generator per env, each seeded as Gymnasium seeds those of its envs, and made only when it is needed."""

    def __init__(self, count: int) -> None:
        self._each: list[np.random.Generator | None] = [None] * count

    def seed(self, seeds: Mapping[int, int]) -> None:
        """Give envs new generators."""
        for i, seed in seeds.items():
            self._each[i] = np.random.Generator(np.random.PCG64(seed))

    def __getitem__(self, env_id: int) -> np.random.Generator:
        found = self._each[env_id]
        if found is None:
            found = self._each[env_id] = np.random.Generator(np.random.PCG64())
        return found

    def __setitem__(self, env_id: int, generator: np.random.Generator) -> None:
        self._each[env_id] = generator

    def words(self, ids: Ids) -> Words:
        """The generator states of these envs, as an array."""
        return np.stack([words_of(self[i]) for i in ids.tolist()])

    def set_words(self, ids: Ids, words: Array) -> None:
        """Put the generators of these envs into the given states; a single row is for all."""
        for i, row in zip(ids.tolist(), np.broadcast_to(words, (len(ids), WORDS)), strict=True):
            self._each[i] = np.random.Generator(np.random.PCG64(0))
            set_words(self[i], row)
