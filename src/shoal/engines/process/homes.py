"""Which env is at home in which lane, and which lane in which worker.

Workers have contiguous shares of the envs at first. A worker that is being replaced shares its range with its heir,
each lane of which has some of the envs, so what a lane may have (``lanes``) and what it has (``lane_ids``) are two
things.
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
        has_spare: Whether there are lanes for one worker more, for the time in which one of them is replaced.

    Attributes:
        num_workers: How many workers there are, without the spare one, which has the last index.
        lanes: The range of env ids in which each lane may have some.
        lane_ids: The envs that are at home in each lane.
        sizes: How many these are.
        lane_of: The lane of each env.
        worker_of_lane: The worker of each lane.
        capacity: How many envs a lane can come to have.
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
        """The envs that are at home in a worker."""
        return [i for i, lane in enumerate(self.lane_of) if self.worker_of_lane[lane] == worker]

    def worker_of(self, env_id: int) -> int:
        """The worker that an env is at home in."""
        return self.worker_of_lane[self.lane_of[env_id]]

    def shares_of(self, worker: int) -> list[tuple[int, range]]:
        """The lanes of a worker with their ranges; a lane that may have no env is none."""
        return [(lane, self.lanes[lane]) for lane in self.lanes_of(worker) if self.lanes[lane]]

    def give_lanes(self, worker: int, lanes: list[tuple[int, range]]) -> None:
        """Say in which ranges the lanes of a worker may have envs; those that are not mentioned have none."""
        given = dict(lanes)
        for lane in self.lanes_of(worker):
            self.lanes[lane] = given.get(lane, range(0))

    def move(self, env_id: int, lane: int) -> None:
        """Make another lane the home of an env."""
        old = self.lane_of[env_id]
        self.lane_ids[old].remove(env_id)
        insort(self.lane_ids[lane], env_id)
        self.sizes[old] -= 1
        self.sizes[lane] += 1
        self.lane_of[env_id] = lane
