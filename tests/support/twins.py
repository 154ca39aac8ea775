"""Twins: a sound copy of every env of a pool, which foretells each row that the pool may hand out.

    twins = Twins(num_envs=4, seed=40, autoreset="next_step")
    twins.take_reset(pool.reset(seed=40), 40)
    twins.take(pool.step(actions), actions)      # fails unless every number in every row is the right one

A row that tells of a fault is foretold too: it has the last observation, no reward, and is cut short; the env behind
it is built anew, on the seed stream of its next incarnation. So a row that is lost, repeated, torn, or of another env
or another time cannot go unnoticed, whatever fails meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.seeding import restart_seed
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import shoal


def fault_of(batch: shoal.Batch, env_id: int) -> dict[str, Any] | None:
    """What the row of an env tells of a fault."""
    rows = [row for row, i in enumerate(batch.env_id.tolist()) if i == env_id]
    told: dict[str, Any] | None = dict(batch.infos).get(rows[0], {}).get("fault") if rows else None
    return told


@dataclass
class Twin:
    """One env as it should be.

    Attributes:
        is_due: Whether the next row is the first of an episode, whatever the action.
        is_out: Whether the env was dropped.
        has_lost_rows: Whether rows of it were dropped that may have told of faults.
    """

    tag: int
    root: int
    settings: dict[str, Any]
    incarnation: int = 0
    elapsed: int = 0
    is_due: bool = False
    is_out: bool = False
    has_lost_rows: bool = False
    env: CountingEnv = field(init=False)
    last: Any = None
    stream: int | None = None

    def __post_init__(self) -> None:
        self.env = CountingEnv(tag=self.tag, **self.settings)
        self.last = np.zeros(self.env.observation_space.shape or ())

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode; the first one of a new self is on a stream of its own, if the caller gives no seed."""
        if seed is not None:
            self.root = seed
        begin, self.stream = self.stream if seed is None else seed, None
        self.elapsed, self.is_due = 0, False
        self.last = self.env.reset(seed=begin)[0]
        return self.last

    def rebuild(self, incarnation: int) -> None:
        """Become the next self."""
        self.incarnation = incarnation
        self.is_out = False
        self.env = CountingEnv(tag=self.tag, **self.settings)
        self.stream = restart_seed(self.root, self.tag, incarnation)


@dataclass
class Expected:
    """One row as it should be."""

    obs: Any
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    elapsed: int = 0
    first: bool = False
    final: Any = None


class Twins:
    """All envs of a pool of counting envs as they should be.

    Attributes:
        faults: How many faults the rows have told of, those included that were tried again before a row was given.
        fault_rows: How many rows have told of one.
        told: What they have told, with the env.
    """

    def __init__(self, num_envs: int, seed: int, autoreset: str, policy: str = "restart", **settings: Any) -> None:
        self.autoreset = autoreset
        self.policy = policy
        self.twins = [Twin(i, seed + i, settings) for i in range(num_envs)]
        self.faults = 0
        self.fault_rows = 0
        self.told: list[dict[str, Any]] = []

    def take_reset(self, batch: shoal.Batch, seeds: Mapping[int, int] | int | None = None) -> None:
        """Check rows that answer an explicit reset; ``seeds`` as the pool was given them."""
        for row, i in enumerate(batch.env_id.tolist()):
            twin, fault = self.twins[i], self._note(batch, row, i)
            if fault is not None and self.policy == "drop":
                twin.is_out = True
            if twin.is_out:
                self._compare(batch, row, Expected(twin.last, truncated=True, elapsed=twin.elapsed))
                continue
            if fault is not None:
                twin.rebuild(fault["incarnation"])
            seed = seeds + i if isinstance(seeds, int) else (seeds or {}).get(i)
            self._compare(batch, row, Expected(twin.reset(seed), first=True))

    def take(self, batch: shoal.Batch, actions: Mapping[int, Any] | Sequence[Any]) -> None:
        """Check rows that answer a step; ``actions`` by env id."""
        for row, i in enumerate(batch.env_id.tolist()):
            fault = self._note(batch, row, i)
            twin = self.twins[i]
            if twin.is_out:
                expected = Expected(twin.last, truncated=True, elapsed=twin.elapsed, final=twin.last)
            elif fault is not None:
                expected = self._failed(twin, fault)
            else:
                expected = self._stepped(twin, actions[i])
            self._compare(batch, row, expected)

    def _note(self, batch: shoal.Batch, row: int, env_id: int) -> dict[str, Any] | None:
        fault: dict[str, Any] | None = dict(batch.infos).get(row, {}).get("fault")
        if fault is not None:
            assert fault["env_id"] == env_id
            self.fault_rows += 1
            self.faults += fault["attempts"]
            self.told.append(fault)
            grown = 0 if self.policy == "drop" else fault["attempts"]
            untold = fault["incarnation"] - self.twins[env_id].incarnation - grown
            assert untold == 0 or (untold > 0 and self.twins[env_id].has_lost_rows), fault
            self.twins[env_id].has_lost_rows = False
        return fault

    def _failed(self, twin: Twin, fault: dict[str, Any]) -> Expected:
        last, elapsed = twin.last, twin.elapsed
        if self.policy == "drop":
            twin.is_out = True
            return Expected(last, truncated=True, elapsed=elapsed, final=last)
        twin.rebuild(fault["incarnation"])
        twin.is_due = True
        if self.autoreset != "same_step":
            return Expected(last, truncated=True, elapsed=elapsed)
        return Expected(twin.reset(), truncated=True, elapsed=elapsed, first=True, final=last)

    def _stepped(self, twin: Twin, action: Any) -> Expected:
        if twin.is_due:
            assert self.autoreset == "next_step", "without autoreset, an env that is over is not stepped"
            return Expected(twin.reset(), first=True)
        obs, reward, terminated, truncated, _ = twin.env.step(action)
        twin.elapsed += 1
        twin.last = obs
        expected = Expected(obs, reward, terminated, truncated, twin.elapsed)
        if terminated or truncated:
            twin.is_due = True
            if self.autoreset == "same_step":
                expected.final, expected.obs, expected.first = obs, twin.reset(), True
        return expected

    def _compare(self, batch: shoal.Batch, row: int, expected: Expected) -> None:
        place = f"env {batch.env_id[row]}: {batch.obs[row]} is not {expected}"
        assert np.array_equal(batch.obs[row], expected.obs), place
        got = (
            batch.reward[row],
            batch.terminated[row],
            batch.truncated[row],
            batch.elapsed_step[row],
            batch.first[row],
        )
        wanted = (expected.reward, expected.terminated, expected.truncated, expected.elapsed, expected.first)
        assert got == wanted, f"{place}, {got} is not {wanted}"
        if self.autoreset == "same_step" and expected.final is not None:
            assert np.array_equal(batch.finals[row][0], expected.final), place
        else:
            assert self.autoreset == "same_step" or not batch.finals
