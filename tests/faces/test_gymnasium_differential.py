"""The same seeds and actions through Gymnasium's own vector env and through shoal give the same data.

``SyncVectorEnv`` is the reference. Every observation, reward, flag and info is compared in value, dtype and structure,
over hundreds of steps and many episode ends, for every engine and every autoreset mode. What shoal adds to the infos
(``env_id``, ``elapsed_step``, ``first``) is compared with a count kept here.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal
from shoal.testing import (
    CountingEnv,
    CustomSpaceEnv,
    DictTupleEnv,
    GraphEnv,
    SampleEnv,
    ScriptedEnv,
    SequenceEnv,
    TextEnv,
    WrappedBufferEnv,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.faces.gymnasium import ShoalVectorEnv

ENGINES = ("serial", "thread", "process")
MODES = tuple(AutoresetMode)
OWN_KEYS = ("env_id", "elapsed_step", "first")
SEED = 20


class Case(NamedTuple):
    """An env that both sides can make: an id with a time limit, or a callable.

    ``standard`` is what the reference runs instead, where Gymnasium cannot run the env itself right.
    """

    source: str | Callable[[], gym.Env[Any, Any]]
    limit: int | None = None
    standard: Callable[[], gym.Env[Any, Any]] | None = None

    def make(self) -> gym.Env[Any, Any]:
        """One env, for the reference."""
        if isinstance(self.source, str):
            return gym.make(self.source, max_episode_steps=self.limit)
        return (self.standard or self.source)()


CASES = {
    "CartPole": Case("CartPole-v1"),
    "CartPole, limit 13": Case("CartPole-v1", 13),
    "Pendulum": Case("Pendulum-v1", 17),
    "MountainCar": Case("MountainCar-v0", 23),
    "MountainCarContinuous": Case("MountainCarContinuous-v0", 11),
    "Acrobot": Case("Acrobot-v1", 19),
    "Taxi": Case("Taxi-v4", 15),
    "Blackjack": Case("Blackjack-v1"),
    "FrozenLake": Case("FrozenLake-v1"),
    "counting": Case(functools.partial(CountingEnv, infos=True)),
    "counting, float32 image": Case(functools.partial(CountingEnv, obs_shape=(4, 3, 2), dtype=np.float32)),
    # Gymnasium keeps a reference to the last observation, so it is not the standard for an env that reuses its buffer.
    "reused buffer": Case(WrappedBufferEnv, standard=CountingEnv),
    "nested": Case(DictTupleEnv),
    "text": Case(TextEnv),
    "sequence": Case(SequenceEnv),
    "stacked sequence": Case(functools.partial(SequenceEnv, stack=True)),
    "graph": Case(GraphEnv),
    "custom space": Case(CustomSpaceEnv),
    "one of": Case(functools.partial(SampleEnv, spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)))))),
    "text in a dict": Case(
        functools.partial(SampleEnv, spaces.Dict({"name": spaces.Text(5), "at": spaces.Box(0, 9, (2,), np.int16)}))
    ),
    "sequence in a tuple": Case(
        functools.partial(SampleEnv, spaces.Tuple((spaces.Sequence(spaces.Discrete(3)), spaces.Discrete(2))))
    ),
    "nested single leaves": Case(
        functools.partial(
            SampleEnv,
            spaces.Dict({"a": spaces.Dict({"x": spaces.Discrete(3)}), "b": spaces.Tuple((spaces.Box(0, 1, (2,)),))}),
        )
    ),
    "text actions": Case(functools.partial(SampleEnv, spaces.Discrete(9), spaces.Text(4))),
    "scalar box": Case(functools.partial(SampleEnv, spaces.Box(-1, 1, (), np.float32), spaces.Box(-1, 1, ()))),
}


# ---------------------------------------------------------------------- comparing


def assert_same(ours: Any, theirs: Any, path: str) -> None:
    """Equal in structure, dtype, shape and value."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), path
        assert ours.keys() == theirs.keys(), path
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{path}[{key!r}]")
    elif isinstance(theirs, (tuple, list)):
        assert type(ours) is type(theirs), path
        assert len(ours) == len(theirs), path
        for number, (mine, yours) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(mine, yours, f"{path}[{number}]")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        assert isinstance(ours, np.ndarray), path
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), path
        assert_same(ours.ravel().tolist(), theirs.ravel().tolist(), path)
    else:
        assert isinstance(ours, np.ndarray) == isinstance(theirs, np.ndarray) or np.ndim(theirs) == 0, path
        # Beside an array, a number is a number: a final observation may be an int where we have an int64.
        mine, yours = np.asarray(ours), np.asarray(theirs)
        if "infos" in path and (mine.dtype.kind, yours.dtype.kind) == ("f", "i") and (mine % 1).any():
            # In Gymnasium the first to bring a key decides the type of its array: after an int, fractions are cut off.
            mine = mine.astype(yours.dtype)
        assert (mine.dtype, mine.shape) == (yours.dtype, yours.shape), path
        assert np.array_equal(mine, yours, equal_nan=yours.dtype.kind == "f"), f"{path}: {ours!r}, not {theirs!r}"


def assert_same_result(ours: tuple[Any, ...], theirs: tuple[Any, ...], at: int) -> None:
    """Equal results of ``reset`` or ``step``, but for the infos that only shoal gives."""
    names = ("obs", "infos") if len(theirs) == 2 else ("obs", "rewards", "terminated", "truncated", "infos")
    infos = {key: value for key, value in ours[-1].items() if key not in OWN_KEYS}
    for name, mine, yours in zip(names, (*ours[:-1], infos), theirs, strict=True):
        assert_same(mine, yours, f"step {at}: {name}")


class Tally:
    """What ``elapsed_step`` and ``first`` have to be, counted from the reference's flags."""

    def __init__(self, num_envs: int, mode: AutoresetMode) -> None:
        self.mode = mode
        self.elapsed = np.zeros(num_envs, np.int32)
        self.first = np.ones(num_envs, np.bool_)
        self.over = np.zeros(num_envs, np.bool_)

    def reset(self, mask: np.ndarray[Any, Any] | None = None) -> None:
        mask = np.ones_like(self.over) if mask is None else mask
        self.elapsed[mask], self.first[mask], self.over[mask] = 0, True, False

    def step(self, terminated: np.ndarray[Any, Any], truncated: np.ndarray[Any, Any]) -> None:
        if self.mode is AutoresetMode.NEXT_STEP:
            self.elapsed = np.where(self.over, 0, self.elapsed + 1).astype(np.int32)
            self.first = self.over
        else:
            restarted = self.over & (self.mode is AutoresetMode.SAME_STEP)
            self.elapsed = np.where(restarted, 1, self.elapsed + 1).astype(np.int32)
            self.first = (terminated | truncated) & (self.mode is AutoresetMode.SAME_STEP)
        self.over = terminated | truncated

    def check(self, infos: dict[str, Any]) -> None:
        assert_same(infos["env_id"], np.arange(len(self.over), dtype=np.int32), "env_id")
        assert_same(infos["elapsed_step"], self.elapsed, "elapsed_step")
        assert_same(infos["first"], self.first, "first")


# ---------------------------------------------------------------------- driving


class Pair:
    """Shoal and the reference, always told the same."""

    def __init__(self, ours: ShoalVectorEnv, theirs: SyncVectorEnv, mode: AutoresetMode) -> None:
        self.ours = ours
        self.theirs = theirs
        self.tally = Tally(theirs.num_envs, mode)
        self.steps = self.episodes = 0
        self.theirs.action_space.seed(SEED)
        self.rng = np.random.default_rng(SEED)

    def reset(self, seed: Any = None, **options: Any) -> None:
        # Gymnasium takes the mask out of the dict it is given, so each side has its own.
        theirs = self.theirs.reset(seed=seed, options=dict(options) or None)
        assert_same_result(self.ours.reset(seed=seed, options=options or None), theirs, self.steps)
        self.tally.reset(options.get("reset_mask"))

    def step(self) -> None:
        actions = self.theirs.action_space.sample()
        theirs = self.theirs.step(actions)
        ours = self.ours.step(actions)
        self.steps += 1
        assert_same_result(ours, theirs, self.steps)
        self.tally.step(theirs[2], theirs[3])
        self.tally.check(ours[-1])
        self.episodes += int(self.tally.over.sum())

    def play(self, steps: int) -> None:
        """Steps with resets of what is over, and now and then of something more, where that is the caller's job."""
        for _ in range(steps):
            self.step()
            if self.tally.mode is AutoresetMode.DISABLED and self.tally.over.any():
                mask = self.tally.over | (self.rng.random(len(self.tally.over)) < 0.2)
                self.reset(seed=self._some_seed(), reset_mask=mask)

    def _some_seed(self) -> Any:
        count = len(self.tally.over)
        numbers = [int(number) for number in self.rng.integers(1000, size=count)]
        mixed = [None if number % 2 else number for number in numbers]
        return [None, numbers[0], numbers, mixed][int(self.rng.integers(4))]

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


@pytest.fixture
def pair_of() -> Iterator[Callable[..., Pair]]:
    """Makes pairs and closes them in the end."""
    pairs: list[Pair] = []

    def make(case: Case, num_envs: int, engine: str, mode: AutoresetMode, **options: Any) -> Pair:
        options["num_workers"] = None if engine == "serial" else 2
        ours = shoal.make_vec(
            case.source, num_envs, engine=engine, autoreset=mode, max_episode_steps=case.limit, **options
        )
        pairs.append(Pair(ours, SyncVectorEnv([case.make] * num_envs, autoreset_mode=mode), mode))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()
    # pytest holds on to this function, and with it to the pools, beyond the check for leaks.
    pairs.clear()


# ---------------------------------------------------------------------- tests


def in_each_mode() -> list[Any]:
    """Every mode on every engine. Processes take their time to start, so one mode goes first and the others later."""
    return [
        pytest.param(
            mode,
            engine,
            id=f"{mode}-{engine}",
            marks=[pytest.mark.slow] if engine == "process" and mode is not AutoresetMode.NEXT_STEP else [],
        )
        for mode in MODES
        for engine in ENGINES
    ]


@pytest.mark.parametrize(("mode", "engine"), in_each_mode())
@pytest.mark.parametrize("name", CASES)
def test_every_env_gives_the_references_data(
    pair_of: Callable[..., Pair], name: str, mode: AutoresetMode, engine: str
) -> None:
    pair = pair_of(CASES[name], 3, engine, mode)
    pair.reset(seed=SEED)
    # Times three envs; registered envs have longer episodes.
    pair.play(200 if isinstance(CASES[name].source, str) else 70)
    assert pair.episodes > 10


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("num_envs", [1, 2, 7])
def test_number_of_envs_makes_no_difference(pair_of: Callable[..., Pair], num_envs: int, engine: str) -> None:
    pair = pair_of(CASES["nested"], num_envs, engine, AutoresetMode.SAME_STEP)
    pair.reset(seed=SEED)
    pair.play(40)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["counting", "nested", "text"])
def test_views_hold_the_references_data(pair_of: Callable[..., Pair], name: str, engine: str) -> None:
    pair = pair_of(CASES[name], 3, engine, AutoresetMode.DISABLED, copy=False)
    pair.reset(seed=SEED)
    pair.play(60)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "seed", [0, np.int64(3), 2**31, [5, 6, 7], [5, None, 7], (1, 2, 3), [None] * 3], ids=lambda seed: repr(seed)
)
def test_every_form_of_seed_seeds_as_the_reference(pair_of: Callable[..., Pair], seed: Any, engine: str) -> None:
    pair = pair_of(CASES["counting"], 3, engine, AutoresetMode.NEXT_STEP)
    pair.reset(seed=11)
    # Gymnasium knows no numpy ints.
    theirs = pair.theirs.reset(seed=int(seed) if isinstance(seed, np.integer) else seed)
    assert_same_result(pair.ours.reset(seed=seed), theirs, 0)
    pair.tally.reset()
    pair.play(20)


@pytest.mark.parametrize("mode", MODES)
def test_reset_in_the_middle_of_episodes(pair_of: Callable[..., Pair], mode: AutoresetMode) -> None:
    pair = pair_of(CASES["counting"], 4, "serial", mode)
    for seed in (SEED, None, [1, None, 2, None]):
        pair.reset(seed=seed)
        pair.play(33)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("engine", ENGINES)
def test_masks_also_work_where_resets_are_automatic(
    pair_of: Callable[..., Pair], mode: AutoresetMode, engine: str
) -> None:
    pair = pair_of(CASES["counting"], 4, engine, mode)
    pair.reset(seed=SEED)
    for _ in range(12):
        pair.play(3)
        pair.reset(reset_mask=np.array([True, False, True, False]))


@pytest.mark.parametrize("engine", ENGINES)
def test_options_reach_the_envs_without_the_mask(pair_of: Callable[..., Pair], engine: str) -> None:
    pair = pair_of(CASES["counting"], 3, engine, AutoresetMode.DISABLED)
    pair.reset(seed=SEED, level=4, path=["a", "b"])
    assert pair.ours.get_attr("last_options") == pair.theirs.get_attr("last_options")
    pair.reset(level=5, reset_mask=np.array([False, True, True]))
    assert pair.ours.get_attr("last_options") == pair.theirs.get_attr("last_options")
    pair.reset(reset_mask=np.array([False, False, True]))
    assert pair.ours.get_attr("last_options") == pair.theirs.get_attr("last_options")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["CartPole", "Taxi", "nested", "text", "graph"])
def test_spaces_and_metadata_are_the_references(pair_of: Callable[..., Pair], name: str, mode: AutoresetMode) -> None:
    pair = pair_of(CASES[name], 3, "serial", mode)
    for attribute in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
        assert getattr(pair.ours, attribute) == getattr(pair.theirs, attribute)
    assert pair.ours.num_envs == pair.theirs.num_envs
    assert pair.ours.metadata == pair.theirs.metadata
    assert pair.ours.metadata["autoreset_mode"] is mode
    assert pair.ours.autoreset_mode is mode
    assert pair.ours.render_mode == pair.theirs.render_mode


@pytest.mark.parametrize("engine", ENGINES)
def test_calls_and_attributes_are_the_references(pair_of: Callable[..., Pair], engine: str) -> None:
    pair = pair_of(CASES["counting"], 3, engine, AutoresetMode.NEXT_STEP)
    pair.reset(seed=SEED)
    pair.play(5)
    for side in (pair.ours, pair.theirs):
        side.set_attr("tag", [4, 5, 6])
        side.set_attr("episode_length", 2)
    for name in ("tag", "episode_length", "total_steps", "np_random_seed", "render"):
        assert_same(pair.ours.get_attr(name), pair.theirs.get_attr(name), name)
        assert_same(pair.ours.call(name), pair.theirs.call(name), name)
    assert_same(pair.ours.np_random_seed, pair.theirs.np_random_seed, "np_random_seed")
    states = [[generator.bit_generator.state for generator in side.np_random] for side in (pair.ours, pair.theirs)]
    assert states[0] == states[1]
    pair.play(20)


_INFO_VALUES = st.one_of(
    st.integers(-100, 100),
    st.floats(allow_nan=False, width=32),
    st.booleans(),
    st.text(max_size=3),
    st.none(),
    st.integers(-100, 100).map(np.int64),
    st.booleans().map(np.bool_),
    st.lists(st.integers(0, 9), max_size=3),
)
# One kind of value per key, as in the field; test_batch.py has the mixtures.
_INFOS = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(-100, 100),
        "ratio": st.floats(allow_nan=False),
        "vector": st.lists(st.floats(0, 1), min_size=2, max_size=2).map(np.array),
        "label": st.text(max_size=3),
        "anything": st.lists(_INFO_VALUES, max_size=2),
        "nested": st.fixed_dictionaries({}, optional={"flag": st.booleans(), "deep": st.just({"t": 1})}),
    },
)
_SCRIPTS = st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans(), st.booleans(), _INFOS), min_size=1, max_size=8)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(scripts=st.lists(_SCRIPTS, min_size=1, max_size=4))
def test_any_script_of_flags_and_infos_gives_the_references_data(mode: AutoresetMode, scripts: list[Any]) -> None:
    factories = [functools.partial(ScriptedEnv, script) for script in scripts]
    ours = shoal.make_vec(factories, engine="serial", autoreset=mode)
    pair = Pair(ours, SyncVectorEnv(factories, autoreset_mode=mode), mode)
    pair.reset(seed=SEED)
    pair.play(20)
    pair.close()
