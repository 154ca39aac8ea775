"""Kinds of kernel envs for tests: between them every sort of space, of field and of trouble. Each compiles once.

Drift     the one for most tests: Box out, Discrete in, info fields of every shape, draws everywhere; it fails
          when it is told to
Parts     Dict out, Dict in
Pair      Tuple out, Tuple in
Cell      a scalar Discrete out, a continuous Box in
Switches  MultiBinary out, MultiDiscrete in
Fading    loses itself: its state becomes NaN at a step of its own choosing
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from shoal.kernel import KernelEnv

if TYPE_CHECKING:
    from shoal import Pool

NEVER = -1
FAR = 50.0


class Drift(KernelEnv):
    """A point that drifts. Episodes end after ``length`` steps, or once in ``odds`` steps.

    ``fail_at`` and ``nan_at`` are steps, ``broken`` is a reset.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(3, start=-1)
    state = {"x": np.float64, "count": np.int64, "trail": (np.float64, 2)}
    info = {
        "speed": np.float64,
        "lap": np.int32,
        "is_far": np.bool_,
        "last_two": (np.float32, (2,)),
        "board": (np.uint8, (2, 2)),
    }
    constants = {"gain": 1.0, "length": 7, "odds": 20, "fail_at": NEVER, "nan_at": NEVER}
    reset_options = {"origin": 0.0, "spread": 1.0, "broken": False}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        if env.broken:
            raise ValueError("the drift is broken")
        env.x = env.origin + env.spread * rng.uniform(-1.0, 1.0)
        env.count = 0
        env.trail[0] = rng.standard_normal()
        env.trail[1] = 0.0
        env.speed = 0.0
        env.lap += 1
        _look(env, obs)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.count += 1
        if env.count == env.fail_at:
            raise ValueError("the drift has run aground")
        env.speed = env.gain * action + rng.normal(0.0, 0.25)
        env.trail[1] = env.trail[0]
        env.trail[0] = env.x
        env.x += env.speed
        _look(env, obs)
        reward = env.speed * 0.5 + rng.random()
        if env.count == env.nan_at:
            reward = np.nan
        return reward, env.count >= env.length or rng.integers(0, env.odds) == 0


def _look(env: Any, obs: Any) -> None:
    env.is_far = abs(env.x) > 1.5
    env.last_two[0] = env.trail[0]
    env.last_two[1] = env.trail[1]
    for k in range(4):
        env.board[k // 2, k % 2] = 10 * env.count + k
    obs[0] = env.x
    obs[1] = env.speed
    obs[2] = env.count


class Parts(KernelEnv):
    """A Dict of everything in both directions."""

    observation_space = spaces.Dict(
        {
            "near": spaces.Box(-FAR, FAR, (2, 2), np.float64),
            "far": spaces.Box(0, 255, (3,), np.uint8),
            "mode": spaces.Discrete(9, start=-4),
            "bits": spaces.MultiBinary(3),
            "depth": spaces.Box(-FAR, FAR, (), np.float32),
        }
    )
    action_space = spaces.Dict(
        {
            "push": spaces.Box(-2.0, 2.0, (2,), np.float32),
            "gear": spaces.Discrete(3),
            "lamps": spaces.MultiBinary(3),
            "aim": spaces.MultiDiscrete([4, 5]),
            "lift": spaces.Box(0.0, 1.0, (), np.float64),
        }
    )
    state = {"total": np.float64, "turn": np.int64}
    info = {"total_lift": np.float64}
    max_episode_steps = 6

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.total = rng.random()
        env.turn = rng.integers(5)
        env.total_lift = 0.0
        for k in range(3):
            obs.far[k] = rng.integers(0, 256)
            obs.bits[k] = rng.integers(2)
        obs.near[:, :] = env.total
        obs.mode[0] = env.turn - 2
        obs.depth[0] = env.total

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.turn += 1
        env.total_lift += action.lift
        for k in range(2):
            obs.near[0, k] = action.push[k]
            obs.near[1, k] = action.aim[k]
        for k in range(3):
            obs.far[k] = (env.turn * (k + 1)) % 256
            obs.bits[k] = action.lamps[k]
        obs.mode[0] = action.gear - 1
        obs.depth[0] = env.total_lift
        return env.turn, action.gear == 2 and rng.random() < 0.5


class Pair(KernelEnv):
    """A Tuple of two in both directions; one of each is a scalar."""

    observation_space = spaces.Tuple((spaces.Box(-FAR, FAR, (2,), np.float32), spaces.Discrete(100)))
    action_space = spaces.Tuple((spaces.Discrete(4), spaces.Box(-1.0, 1.0, (2,), np.float64)))
    state = {"order": (np.int64, (5,)), "at": np.int64}
    max_episode_steps = 9

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.at = 0
        for k in range(5):
            env.order[k] = 10 * k
        rng.shuffle(env.order)
        place, number = obs
        place[0] = rng.uniform(-1.0, 1.0)
        place[1] = rng.uniform(high=3.0)
        number[0] = env.order[0]

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        side, push = action
        env.at = (env.at + side) % 5
        obs[0][0] = push[0]
        obs[0][1] = push[1] * rng.random()
        obs[1][0] = env.order[env.at] + side
        return float(push[0]), env.order[env.at] == 40


class Cell(KernelEnv):
    """A number between 0 and 9, pushed by a continuous force."""

    observation_space = spaces.Discrete(10)
    action_space = spaces.Box(np.float32([-1.0, -2.0]), np.float32([1.0, 2.0]), dtype=np.float32)
    state = {"cell": np.int64}
    info = {"drawn": np.int64}
    max_episode_steps = 12

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.cell = rng.integers(10)
        env.drawn = 0
        obs[0] = env.cell

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.drawn = rng.integers(-3, 4)
        force = float(action[0]) + 2.0 * float(action[1])
        env.cell += 1 if force > 0.0 else -1
        is_out = env.cell < 0 or env.cell > 9
        env.cell = min(max(env.cell, 0), 9)
        obs[0] = env.cell
        return force, is_out


class Switches(KernelEnv):
    """Lamps, and wheels that set them. It has a constant that is an array."""

    observation_space = spaces.MultiBinary(4)
    action_space = spaces.MultiDiscrete([2, 3, 4], start=[0, -1, 5])
    state = {"lamps": (np.uint8, 4)}
    constants = {"weights": np.array([1, 10, 100])}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        lit = rng.permutation(4)[0]
        for k in range(4):
            env.lamps[k] = k == lit
            obs[k] = env.lamps[k]

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        score = 0
        for k in range(3):
            score += action[k] * env.weights[k]
            env.lamps[k] = action[k] > 0
        env.lamps[3] = 1 - env.lamps[3]
        for k in range(4):
            obs[k] = env.lamps[k]
        return float(score), action[0] == 1 and action[1] == 1


class Fading(KernelEnv):
    """A number that counts its steps until, at step ``fade_at`` of each episode, it is none any more."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(5)
    state = {"x": np.float64, "count": np.int64}
    constants = {"fade_at": 2, "length": 10**6, "fades_first": False}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.count = 0
        env.x = np.nan if env.fades_first else 1.0 + rng.random()
        obs[0] = env.x
        obs[1] = 0.0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.count += 1
        env.x = np.nan if env.count == env.fade_at else env.x + action
        obs[0] = env.x
        obs[1] = env.count
        return float(env.count), env.count >= env.length


LASTING = {"length": 10**6, "odds": 10**15}
"""Constants with which a Drift goes on until it is stopped."""

KINDS = (Drift, Parts, Pair, Cell, Switches)
MODES = ("next_step", "same_step", "disabled")


def rows_of(batch: Any) -> dict[str, Any]:
    """A batch with its info fields as infos, which is how engines that do not compile report them."""
    own = dict(batch.infos)
    fields = [{name: _item(column[row]) for name, column in batch.fields.items()} for row in range(len(batch))]
    names = ("obs", "reward", "terminated", "truncated", "env_id", "elapsed_step", "first")
    return {
        **{name: getattr(batch, name) for name in names},
        "finals": dict(batch.finals),
        "infos": [own.get(row, {}) | fields[row] for row in range(len(batch))],
    }


def _item(value: Any) -> Any:
    # A flag of a single env is Python's own, so that Gymnasium makes columns of flags.
    return bool(value) if isinstance(value, np.bool_) else value


def assert_same(got: Any, expected: Any, path: str = "") -> None:
    """Equal values of equal types all the way down; arrays have equal dtypes and shapes."""
    assert type(got) is type(expected), f"{path}: {got!r} is no {type(expected).__name__}"
    if isinstance(expected, dict):
        assert sorted(got, key=str) == sorted(expected, key=str), f"{path}: keys {list(got)} and {list(expected)}"
        for key in expected:
            assert_same(got[key], expected[key], f"{path}[{key!r}]")
    elif isinstance(expected, tuple | list) or (isinstance(expected, np.ndarray) and expected.dtype == object):
        assert getattr(got, "dtype", None) == getattr(expected, "dtype", None), f"{path}: {got!r}, {expected!r}"
        assert len(got) == len(expected), f"{path}: {len(got)} items, expected {len(expected)}"
        for k, (one, other) in enumerate(zip(got, expected, strict=True)):
            assert_same(one, other, f"{path}[{k}]")
    elif isinstance(expected, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), f"{path}: {got.dtype}, {expected.dtype}"
        np.testing.assert_array_equal(got, expected, err_msg=path)
    else:
        assert got == expected, f"{path}: {got!r}, expected {expected!r}"


def random_actions(tree: Any, count: int, seed: int) -> Any:
    """Actions for ``count`` envs of a pool with this ``spec.action``, nested as it takes them."""
    tree.space.seed(seed)
    samples = [tree.flatten(tree.space.sample()) for _ in range(count)]
    return tree.unflatten([np.array(leaf) for leaf in zip(*samples, strict=True)])


def play(pool: Any, num_steps: int, seed: int = 5) -> list[dict[str, Any]]:
    """A seeded run of a whole pool; envs that are over are reset where nobody else does it."""
    rows = [rows_of(pool.reset(seed=seed))]
    for turn in range(num_steps):
        batch = pool.step(random_actions(pool.spec.action, pool.num_envs, turn))
        rows.append(rows_of(batch))
        over = np.flatnonzero(batch.terminated | batch.truncated).tolist()
        if over and pool.autoreset == "disabled":
            rows.append(rows_of(pool.reset(env_id=over)))
    return rows


def go_on(pool: Pool, num_steps: int, ids: list[int] | None = None, seed: int = 0) -> list[dict[str, Any]]:
    """Steps from where the envs are, episodes included; ``ids`` for some of them."""
    rows = []
    count = pool.num_envs if ids is None else len(ids)
    for turn in range(num_steps):
        last = pool.latest(ids)
        over = last.env_id[last.terminated | last.truncated]
        if pool.autoreset == "disabled" and len(over):
            rows.append(rows_of(pool.reset(env_id=over)))
        rows.append(rows_of(pool.step(random_actions(pool.spec.action, count, seed + turn), ids)))
    return rows
