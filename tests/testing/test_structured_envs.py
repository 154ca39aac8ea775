"""The envs with unusual spaces stay inside them and repeat themselves from a seed."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import data_equivalence

from shoal.testing import (
    CustomSpaceEnv,
    DictTupleEnv,
    GraphEnv,
    InventorySpace,
    SampleEnv,
    SequenceEnv,
    TextEnv,
)

if TYPE_CHECKING:
    from collections.abc import Callable

MAKERS: list[Callable[[], SampleEnv]] = [
    DictTupleEnv,
    TextEnv,
    SequenceEnv,
    lambda: SequenceEnv(stack=True),
    GraphEnv,
    CustomSpaceEnv,
    lambda: SampleEnv(spaces.OneOf((spaces.Discrete(3), spaces.MultiBinary(2)))),
]


def play(env: SampleEnv, steps: int, seed: int = 0) -> list[Any]:
    env.action_space.seed(seed)
    log: list[Any] = [env.reset(seed=seed)]
    for _ in range(steps):
        log.append(env.step(env.action_space.sample()))
        if log[-1][2] or log[-1][3]:
            log.append(env.reset())
    return log


@pytest.mark.parametrize("make", MAKERS)
def test_observations_are_in_the_space_and_follow_from_the_seed(make: Callable[[], SampleEnv]) -> None:
    env = make()
    log = play(env, 30)
    assert all(entry[0] in env.observation_space for entry in log)
    # Sampling the public space in between must not change what the env observes.
    env.observation_space.sample()
    for one, other in zip(log, play(env, 30), strict=True):
        assert data_equivalence(one[1:], other[1:])
        assert plain(one[0]) == plain(other[0])
    assert any(plain(one[0]) != plain(other[0]) for one, other in zip(log, play(make(), 30, seed=1), strict=True))


@pytest.mark.parametrize("make", MAKERS)
def test_rewards_count_and_endings_take_turns(make: Callable[[], SampleEnv]) -> None:
    steps = [entry for entry in play(make(), 20) if len(entry) == 5]
    assert [entry[1] for entry in steps] == [1, 2, 3, 4, 5] * 4
    ends = [entry[2:4] for entry in steps if entry[2] or entry[3]]
    assert ends == [(True, False), (False, True)] * 2


@pytest.mark.parametrize("make", MAKERS)
def test_stepping_without_a_reset_raises(make: Callable[[], SampleEnv]) -> None:
    env = make()
    with pytest.raises(ResetNeeded):
        env.step(env.action_space.sample())


def test_the_action_is_echoed_and_copied() -> None:
    env = DictTupleEnv()
    env.reset(seed=0)
    action = env.action_space.sample()
    echo = env.step(action)[0]["echo"]
    assert data_equivalence(dict(echo), dict(action))
    action["force"][:] = 9
    assert not (echo["force"] == 9).any()


def test_infos_hold_many_types_and_some_keys_only_at_times() -> None:
    infos = [entry[-1] for entry in play(DictTupleEnv(), 40)]
    assert {type(value).__name__ for value in infos[0].values()} >= {
        *("int", "float", "float32", "int64", "bool", "str", "ndarray", "dict"),
        type(infos[0]["numpy_flag"]).__name__,
    }
    assert 0 < sum("rare" in info for info in infos) < len(infos)
    assert 0 < sum("rare" in info["nested"] for info in infos) < len(infos)


def test_sizes_vary() -> None:
    assert len({len(entry[0]) for entry in play(TextEnv(), 40)}) > 3
    assert len({len(entry[0]) for entry in play(SequenceEnv(), 40)}) > 3
    assert len({len(entry[0].nodes) for entry in play(GraphEnv(), 40)}) > 3


def test_the_custom_space_tells_its_own_values_from_others() -> None:
    space = InventorySpace(seed=1)
    assert all(space.sample() in space for _ in range(20))
    assert space == pickle.loads(pickle.dumps(space)) == InventorySpace()
    assert hash(space) == hash(InventorySpace())
    assert space != InventorySpace(size=3)
    assert "size" not in repr(space)
    for other in (
        None,
        {},
        {"items": ["x"], "place": (0, 0)},
        {"items": [], "place": [0, 0]},
        {"items": [], "place": (0, 99)},
    ):
        assert other not in space


def test_an_episode_needs_a_step() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        SampleEnv(spaces.Discrete(2), episode_length=0)


def plain(value: Any) -> Any:
    """The value with arrays as lists, so that == compares it whole."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    return value.tolist() if hasattr(value, "tolist") else value
