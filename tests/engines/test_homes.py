"""Which env is at home where."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupts import interrupt_at

from shoal.engines.process.homes import Homes


def test_workers_have_contiguous_shares_at_first() -> None:
    homes = Homes(5, 2, 1, has_spare=False)
    assert homes.num_workers == 2
    assert homes.lanes == [range(3), range(3, 5)]
    assert [homes.envs_of(w) for w in range(2)] == [[0, 1, 2], [3, 4]]
    assert homes.shares_of(1) == [(1, range(3, 5))]
    assert (homes.sizes, homes.capacity) == ([3, 2], 3)


def test_threads_are_lanes_of_their_worker() -> None:
    homes = Homes(5, 2, 2, has_spare=False)
    assert homes.lanes == [range(2), range(2, 3), range(3, 4), range(4, 5)]
    assert homes.worker_of_lane == [0, 0, 1, 1]
    assert [homes.worker_of(i) for i in range(5)] == [0, 0, 0, 1, 1]
    assert homes.capacity == 3


@pytest.mark.parametrize(("num_envs", "workers", "threads"), [(2, 8, 1), (3, 2, 2), (1, 1, 4), (2, 2, 3)])
def test_there_are_no_more_lanes_than_envs(num_envs: int, workers: int, threads: int) -> None:
    homes = Homes(num_envs, workers, threads, has_spare=False)
    assert all(homes.sizes)
    assert sum(homes.sizes) == num_envs
    assert all(homes.envs_of(w) for w in range(homes.num_workers))


def test_the_spare_worker_has_lanes_and_no_envs() -> None:
    homes = Homes(3, 2, 2, has_spare=True)
    assert homes.num_workers == 2
    assert homes.lanes_of(2) == [3, 4]  # as many as any other has
    assert homes.envs_of(2) == []
    assert homes.shares_of(2) == []
    assert homes.sizes == [1, 1, 1, 0, 0]


def test_an_env_that_moves_is_at_home_in_one_lane() -> None:
    homes = Homes(4, 2, 1, has_spare=True)
    homes.give_lanes(2, [(2, range(2))])
    homes.move(1, 2)
    homes.move(0, 2)
    assert homes.lane_ids == [[], [2, 3], [0, 1]]
    assert homes.sizes == [0, 2, 2]
    assert [homes.worker_of(i) for i in range(4)] == [2, 2, 1, 1]
    assert homes.lanes[0] == range(2)  # it may have them, though it does not


def test_lanes_that_a_worker_is_not_given_are_empty() -> None:
    homes = Homes(4, 2, 2, has_spare=True)
    homes.give_lanes(0, [(0, range(2))])
    assert homes.shares_of(0) == [(0, range(2))]
    homes.give_lanes(0, [(0, range(1)), (1, range(1, 2))])
    assert homes.shares_of(0) == [(0, range(1)), (1, range(1, 2))]


@given(
    num_envs=st.integers(1, 9),
    workers=st.integers(1, 4),
    threads=st.integers(1, 3),
    moves=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 20)), max_size=20),
)
def test_every_env_is_at_home_once_wherever_they_move(
    num_envs: int, workers: int, threads: int, moves: list[tuple[int, int]]
) -> None:
    homes = Homes(num_envs, workers, threads, has_spare=True)
    for env_id, lane in moves:
        homes.move(env_id % num_envs, lane % len(homes.lanes))
    assert sorted(i for ids in homes.lane_ids for i in ids) == list(range(num_envs))
    assert homes.sizes == [len(ids) for ids in homes.lane_ids]
    assert all(ids == sorted(ids) for ids in homes.lane_ids)
    assert all(i in homes.lane_ids[homes.lane_of[i]] for i in range(num_envs))
    assert sorted(i for w in range(homes.num_workers + 1) for i in homes.envs_of(w)) == list(range(num_envs))


def test_an_env_whose_move_is_cut_short_has_moved_in_all_books_or_in_none() -> None:
    for point in count():
        homes = Homes(4, 2, 1, has_spare=True)
        was_cut = interrupt_at(point, lambda homes=homes: homes.move(1, 2))  # type: ignore[misc]
        lane = homes.lane_of[1]
        assert lane in (0, 2)
        assert [lane for lane, ids in enumerate(homes.lane_ids) if 1 in ids] == [lane]
        assert homes.sizes == [len(ids) for ids in homes.lane_ids] == ([2, 2, 0] if lane == 0 else [1, 2, 1])
        if not was_cut:
            break
    assert lane == 2
