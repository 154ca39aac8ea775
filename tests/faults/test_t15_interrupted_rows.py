"""T15: after a Ctrl-C, a row comes with all that belongs to it and nothing else, and a fault is reported once."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from interrupts import interrupt_at

from shoal.errors import FaultError, NothingInFlight, StateError
from shoal.recovery import Restart
from shoal.testing import CountingEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable

    import shoal

SOON_S = 10.0
GO, FAIL = 1, 4
WAYS = ["serial", "thread", "process", "inline process"]


class Talking(CountingEnv):
    """The info of every other step has a text, which no column can hold; told to fail, it does."""

    has_failed = False

    def step(self, action: Any) -> Any:
        if action == FAIL:
            self.has_failed = True
            raise RuntimeError("as told")
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, info_of(self._total)


def info_of(total: int) -> dict[str, Any]:
    """What a `Talking` env tells of its step number ``total``."""
    return {"told": f"step {total}"} if total % 2 else {}


def options_of(way: str) -> dict[str, Any]:
    options: dict[str, Any] = {"engine": "process", "inline": True} if "inline" in way else {"engine": way}
    return options if way == "serial" else {**options, "num_workers": 2}


def cut_short(point: int, way_in: str, pool: shoal.Pool, actions: list[int]) -> bool:
    """Step all envs, and interrupt that, or only the receiving; returns whether there was such a point."""
    if way_in == "step":
        return interrupt_at(point, lambda: pool.step(actions))
    pool.send(actions)
    return interrupt_at(point, pool.recv)


def assert_whole(batch: shoal.Batch) -> None:
    """Infos and final observations are those of their rows."""
    infos = dict(batch.infos)
    for row, obs in enumerate(batch.obs):
        is_over = bool(batch.terminated[row] or batch.truncated[row])
        assert (row in batch.finals) == is_over
        if is_over:
            assert row not in infos  # a reset has nothing to tell
        last, info = batch.finals[row] if is_over else (obs, infos.get(row, {}))
        assert info == info_of(read_row(last).total)


@pytest.mark.parametrize("episode_length", [3, 1000])
@pytest.mark.parametrize("way_in", ["step", "recv"])
@pytest.mark.parametrize("way", WAYS)
def test_t15_what_belongs_to_a_row_comes_with_it_and_with_no_other(
    way: str, way_in: str, episode_length: int, make_pool: Callable[..., shoal.Pool]
) -> None:
    env = partial(Talking, episode_length=episode_length)
    pool = make_pool(env, 2, autoreset="same_step", step_timeout=SOON_S, **options_of(way))
    for point in count():
        pool.reset(seed=point)
        for _ in range(2):
            pool.step([GO, GO])
        was_cut = cut_short(point, way_in, pool, [GO, GO])
        try:
            while True:
                assert_whole(pool.recv(timeout=SOON_S))
        except NothingInFlight:
            assert_whole(pool.step([GO, GO]))
        except StateError:
            pass  # what was under way is lost, and that was said
        except FaultError as error:
            if not isinstance(error.__cause__, KeyboardInterrupt):  # else it came in the middle of an env
                raise
        if not was_cut:
            break
    assert point > 20


NO_REPORT = (0, False)


def reports_of(batch: shoal.Batch, env_id: int) -> list[tuple[int, bool]]:
    """How many faults the rows of an env report, and whether they are truncated."""
    infos = dict(batch.infos)
    rows = [row for row, i in enumerate(batch.env_id) if i == env_id]
    return [(infos.get(row, {}).get("fault", {"attempts": 0})["attempts"], bool(batch.truncated[row])) for row in rows]


@pytest.mark.parametrize("way_in", ["step", "recv"])
@pytest.mark.parametrize("way", WAYS)
def test_t15_a_fault_is_reported_once_and_its_env_begins_anew(
    way: str, way_in: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    restart = Restart(budget=None, backoff_s=0.0)
    env = partial(Talking, episode_length=1000)
    pool = make_pool(env, 2, on_fault=restart, step_timeout=SOON_S, **options_of(way))
    for point in count():
        pool.reset(seed=point)
        pool.step([GO, GO])
        was_cut = cut_short(point, way_in, pool, [GO, FAIL])
        reports: list[tuple[int, bool]] = []
        try:
            while True:
                reports += reports_of(pool.recv(timeout=SOON_S), 1)
        except NothingInFlight:
            was_received = bool(reports)
            batch = pool.step([GO, GO])
            assert batch.first[1] or not was_received
            assert reports_of(batch, 1) == [NO_REPORT]
            assert pool.get_attr("has_failed") == (False, False)
        except StateError:
            pass  # what was under way is lost, and that was said
        assert reports in ([], [(1, True)])
        if not was_cut:
            break
    assert point > 20
