"""Running a pool under a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arguments import check_count
from shoal.collect.at_own_pace import AtOwnPace
from shoal.collect.episodes import Episode, EpisodeCutter, Evaluation, Tally
from shoal.collect.in_step import InStep
from shoal.collect.random_actions import RandomActions
from shoal.errors import ArgumentError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.collect.segment import Epoch
    from shoal.pool import Pool
    from shoal.seeding import Seed

Policy = Callable[[Any], Any]
_EPISODE_STEPS = 64  # how many steps to take before checking whether enough episodes have ended


class Collector:
    """Collects data from a pool.

    Epochs are contiguous: each begins with the last row of the one before, so that the transitions of all epochs are
    those of one long run, with none lost and none repeated. What counts as a transition does not depend on the pool's
    autoreset mode.

    Args:
        pool: Any pool, or a face with a ``pool``: in step or asynchronous, in any autoreset mode.
        policy: Takes a batch of observations and returns as many actions; None acts at random.
        seed: Seed of the first reset, and of random actions.

    Example:
        >>> import shoal
        >>> with shoal.make_pool("CartPole-v1", 4, engine="serial") as pool:
        ...     collector = shoal.Collector(pool, lambda obs: (obs[:, 2] > 0).astype(int), seed=1)
        ...     epoch = collector.collect(steps=50)
        ...     data = epoch.transitions()
        >>> data.obs.shape[1:], len(data) == epoch.num_steps
        ((4,), True)
    """

    def __init__(self, pool: Pool | Any, policy: Policy | None = None, *, seed: Seed = None) -> None:
        self.pool: Pool = getattr(pool, "pool", pool)
        self._seed = seed
        # Also for the resets after evaluations, which have reseeded the generators of the envs.
        self._seeds = np.random.SeedSequence(None if seed is None else _numbers(seed))
        root = None if seed is None else int(self._seeds.generate_state(1)[0])
        actor = _actor(policy) if policy else RandomActions(self.pool.spec.action, root)
        recorder = AtOwnPace if self.pool.is_async else InStep
        self._recorder: AtOwnPace | InStep = recorder(self.pool, actor)
        self._rows_read: int | None = None
        self._turns = 0  # epochs and resets so far

    def reset(self, seed: Seed = None) -> None:
        """Have the next epoch begin with a reset of all envs."""
        self._seed = seed
        self._rows_read = None
        self._turns += 1
        self._recorder.forget()

    def collect(self, steps: int | None = None) -> Epoch:
        """Step every env ``steps`` times, or take as many rows from an asynchronous pool.

        Without a number, go on until an episode has ended in every env. Dropped envs are not waited for.
        """
        check_count("steps", steps)
        if self._rows_read is not None and self._rows_read != self.pool.rows_read:
            raise StateError("somebody else has used the pool since the last epoch: reset() the collector to go on")
        seed, self._seed = self._seed, None
        self._rows_read = None
        self._turns += 1
        try:
            epoch = self._recorder.run(steps, seed)
        except BaseException:
            # Rows are left behind that nobody has seen or answered, so the next epoch begins with a reset.
            self._recorder.forget()
            raise
        self._rows_read = self.pool.rows_read
        return epoch

    def epochs(self, steps: int | None = None, count: int | None = None) -> Iterator[Epoch]:
        """One epoch after the other, ``count`` of them or without end."""
        done = 0
        while count is None or done < count:
            yield self.collect(steps)
            done += 1

    def episodes(self, steps: int = _EPISODE_STEPS) -> Iterator[Episode]:
        """Whole episodes as they end, in an endless stream that is fed every ``steps`` steps.

        If the collector is used for something else in the meantime, episodes that were under way are left out.
        """
        cutter, turns = EpisodeCutter(), self._turns
        while True:
            if turns != self._turns:
                cutter.forget()
            epoch, turns = self.collect(steps), self._turns
            yield from cutter.cut(epoch)

    def evaluate(self, episodes: int, seed: Seed = None) -> Evaluation:
        """Play this many episodes from a fresh reset, each env its share of them.

        The seed is for the envs; random actions continue as before. Dropped envs have no share. Afterwards, the next
        epoch begins with a reset. If there was a seed, that reset gets another one, derived from the collector's own,
        so that repeated evaluations with the same seed do not make all epochs begin alike.
        """
        if episodes < 1:
            raise ArgumentError(f"episodes: expected at least 1, got {episodes}")
        count = self.pool.num_envs
        left = {i: episodes // count + (i < episodes % count) for i in range(count)}
        self.reset(seed)
        played: list[tuple[int, float, int]] = []
        tally = Tally(count)
        while any(share for i, share in left.items() if i not in self.pool.dropped):
            for episode in tally.count(self.collect(_EPISODE_STEPS)):
                if left[episode[0]]:
                    left[episode[0]] -= 1
                    played.append(episode)
        self.reset(None if seed is None else int(self._seeds.spawn(1)[0].generate_state(1)[0] >> 1))
        ids, returns, lengths = zip(*played, strict=True) if played else ((), (), ())
        return Evaluation(np.array(returns, np.float64), np.array(lengths, np.int64), np.array(ids, np.int32))


def _numbers(seed: Any) -> list[int]:
    """A seed of any form as a list of numbers."""
    return [0 if s is None else int(s) for s in np.ravel(np.array(seed, object))]


def _actor(policy: Policy) -> Callable[[Any, int], Any]:
    return lambda obs, rows: policy(obs)
