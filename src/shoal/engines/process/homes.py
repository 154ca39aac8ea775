"""Which lane each env lives in, and which worker each lane belongs to.

Workers have contiguous shares of the envs at first. A worker that is being replaced shares its range with its heir,
and each lane has only some of the envs in it. So the envs that a lane may have (``lanes``) and those that it has
(``lane_ids``) are kept apart.
"""

from __future__ import annotations

from bisect import insort

from shoal.engines.base import shares


class Homes:
    """The homes of all envs.

    Args:
        num_envs: How many envs there are.
        num_workers: How many workers are wanted.
        threads_per_worker: How many lanes each of them has.
        has_spare: Whether there are lanes for one more worker, for use while another is being replaced.

    Attributes:
        num_workers: How many workers there are, not counting the spare one, which has the last index.
        lanes: The range of env ids from which each lane may have some.
        lane_ids: The envs that live in each lane.
        sizes: How many envs live in each lane.
        lane_of: The lane of each env.
        worker_of_lane: The worker of each lane.
        capacity: The most envs that a lane can ever have.
    """

    def __init__(self, num_envs: int, num_workers: int, threads_per_worker: int, *, has_spare: bool) -> None:
        count = min(num_envs, num_workers)
        regular = min(count * threads_per_worker, num_envs)
        self.num_workers = min(count, regular)
        self.lanes = shares(num_envs, regular)
        self.lane_of = [lane for lane, ids in enumerate(self.lanes) for _ in ids]
        self.worker_of_lane = [w for w, mine in enumerate(shares(regular, self.num_workers)) for _ in mine]
        self.capacity = max(len(self.envs_of(w)) for w in range(self.num_workers))
        if has_spare:
            spare = max(len(self.lanes_of(w)) for w in range(self.num_workers))
            self.lanes += [range(0)] * spare
            self.worker_of_lane += [self.num_workers] * spare
        self.lane_ids = [list(ids) for ids in self.lanes]
        self.sizes = [len(ids) for ids in self.lanes]

    def lanes_of(self, worker: int) -> list[int]:
        """The lanes of a worker."""
        return [lane for lane, index in enumerate(self.worker_of_lane) if index == worker]

    def envs_of(self, worker: int) -> list[int]:
        """The envs that live in a worker."""
        return [i for i, lane in enumerate(self.lane_of) if self.worker_of_lane[lane] == worker]

    def worker_of(self, env_id: int) -> int:
        """The worker that an env lives in."""
        return self.worker_of_lane[self.lane_of[env_id]]

    def shares_of(self, worker: int) -> list[tuple[int, range]]:
        """The lanes of a worker with their ranges, except those that may have no env."""
        return [(lane, self.lanes[lane]) for lane in self.lanes_of(worker) if self.lanes[lane]]

    def give_lanes(self, worker: int, lanes: list[tuple[int, range]]) -> None:
        """Set the ranges from which a worker's lanes may have envs; lanes that are not mentioned have none."""
        given = dict(lanes)
        for lane in self.lanes_of(worker):
            self.lanes[lane] = given.get(lane, range(0))

    def move(self, env_id: int, lane: int) -> None:
        """Make another lane the home of an env."""
        lane_of = self.lane_of.copy()
        lane_of[env_id] = lane
        lane_ids = [[i for i in ids if i != env_id] for ids in self.lane_ids]
        insort(lane_ids[lane], env_id)
        # In one go, so that an interrupt finds the env in one home, and in all books.
        self.lane_of, self.lane_ids, self.sizes = lane_of, lane_ids, [len(ids) for ids in lane_ids]
