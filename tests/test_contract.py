"""One env per way to break the contract, each broken in that way only; and envs that break nothing."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from shoal.contract import RULES, Finding, check_env, examine
from shoal.contract.compare import difference
from shoal.envs import TASKS
from shoal.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = 40


class Drift(gym.Env):
    """Keeps every rule: a point drifts by chance and by its action, and leaves after a while."""

    metadata: Any = {"render_modes": ["rgb_array"]}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-2, 2, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)
        self.render_mode = render_mode
        self.place = np.zeros(2)
        self.elapsed = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-0.1, 0.1, 2)
        self.elapsed = 0
        return self.observe(), {}

    def step(self, action: Any) -> Any:
        self.place = np.clip(self.place + 0.3 * action[0] + self.np_random.normal(0, 0.3, 2), -2, 2)
        self.elapsed += 1
        return (
            self.observe(),
            float(self.place[0]),
            bool(abs(self.place[0]) > 1),
            self.elapsed >= 20,
            {"t": self.elapsed},
        )

    def observe(self) -> Any:
        return self.place.astype(np.float32)

    def render(self) -> Any:
        return np.zeros((4, 4, 3), np.uint8)


def returning(**parts: Any) -> type[Drift]:
    """A ``Drift`` whose step has other values in some places of its tuple; functions are given the true value."""

    class Returning(Drift):
        def step(self, action: Any) -> Any:
            names = ("obs", "reward", "terminated", "truncated", "info")
            true = dict(zip(names, super().step(action), strict=True))
            return tuple(parts[n](v) if callable(parts.get(n)) else parts.get(n, v) for n, v in true.items())

    return Returning


def observing(space: Any, value: Any) -> type[Drift]:
    """A ``Drift`` with another space and another observation, or a function of the true one."""

    class Observing(Drift):
        def __init__(self) -> None:
            super().__init__()
            self.observation_space = space

        def observe(self) -> Any:
            return value(super().observe()) if callable(value) else value

    return Observing


BOX = spaces.Box(-2, 2, (2,), np.float32)


# Build and spaces.


class NeedsSize(Drift):
    def __init__(self, size: int) -> None:
        super().__init__()


class RaisesInInit(Drift):
    def __init__(self) -> None:
        raise OSError("no screen")


class NoSpace(Drift):
    def __init__(self) -> None:
        super().__init__()
        self.action_space = None


class ListForSpace(Drift):
    def __init__(self) -> None:
        super().__init__()
        self.observation_space = [0, 1]


class WidensInReset(Drift):
    def reset(self, **arguments: Any) -> Any:
        self.observation_space = spaces.Box(-3, 3, (2,), np.float32)
        return super().reset(**arguments)


class GrowsWithEachInstance(Drift):
    made: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()
        self.made.append(1)
        self.action_space = spaces.Box(-1, 1, (len(self.made),), np.float32)


# Reset and step.


class NoSeed(Drift):
    def reset(self) -> Any:
        return super().reset()


class NoOptions(Drift):
    def reset(self, *, seed: int | None = None) -> Any:
        return super().reset(seed=seed)


class ObservationAlone(Drift):
    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0]


class NoInfoInReset(Drift):
    def reset(self, **arguments: Any) -> Any:
        return super().reset(**arguments)[0], None


class RaisesInReset(Drift):
    def reset(self, **arguments: Any) -> Any:
        raise ZeroDivisionError("nothing to divide")


class OldStep(Drift):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class ListFromStep(Drift):
    def step(self, action: Any) -> Any:
        return list(super().step(action))


class RaisesInStep(Drift):
    def step(self, action: Any) -> Any:
        if self.elapsed == 2:
            raise IndexError("off the map")
        return super().step(action)


class ExitsInStep(Drift):
    def step(self, action: Any) -> Any:
        raise SystemExit(3)


# Ends.


class Endless(Drift):
    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {}


class TerminatesOnTime(Drift):
    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, self.elapsed >= 5, False, {}


class TruncatesOnTime(Drift):
    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, self.elapsed >= 5, {}


class IgnoresItsLimit(TruncatesOnTime):
    spec = gym.envs.registration.EnvSpec("Ignores-v0", max_episode_steps=4)


# What is not theirs.


class OneBuffer(Drift):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(2, np.float32)

    def observe(self) -> Any:
        self.buffer[:] = self.place
        return self.buffer


class ResetHandsOutState(Drift):
    """Only the observation of reset is the memory that step goes on to write to."""

    def reset(self, **arguments: Any) -> Any:
        _, info = super().reset(**arguments)
        self.first = self.observe()
        return self.first, info

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self.first[:] = result[0]
        return result


class OneInfo(Drift):
    def __init__(self) -> None:
        super().__init__()
        self.info: dict[str, Any] = {}

    def step(self, action: Any) -> Any:
        self.info["t"] = self.elapsed
        return (*super().step(action)[:4], self.info)


class ScalesTheAction(Drift):
    def step(self, action: Any) -> Any:
        action *= 0.5
        return super().step(action)


class ShufflesInStep(Drift):
    def step(self, action: Any) -> Any:
        random.random()
        return super().step(action)


class SeedsNumpyInInit(Drift):
    def __init__(self) -> None:
        super().__init__()
        np.random.seed(1)


# Seeds and instances.


class OwnEntropy(Drift):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        self.np_random = np.random.default_rng()
        return super().reset()


class FreshEntropyWithoutSeed(Drift):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        if seed is None:
            self.np_random = np.random.default_rng()
        return super().reset(seed=seed)


class RemembersItsLastEpisode(Drift):
    bonus = 0.0

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self.bonus += 1
        return obs, reward + self.bonus, *rest


class DrawsInInit(Drift):
    def __init__(self) -> None:
        super().__init__()
        self.goal = float(np.random.default_rng().uniform())

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + self.goal, *rest


class NoChance(Drift):
    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return super().reset(seed=7)


class RepeatsItself(Drift):
    last: int | None = None

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        self.last = self.last if seed is None else seed
        return super().reset(seed=self.last)


class SharesItsPlace(Drift):
    shared: ClassVar[np.ndarray] = np.zeros(2)

    def reset(self, **arguments: Any) -> Any:
        result = super().reset(**arguments)
        self.shared[:] = self.place
        return result

    def step(self, action: Any) -> Any:
        self.place = self.shared.copy()
        result = super().step(action)
        self.shared[:] = self.place
        return result


class ClosesForAll(Drift):
    is_open: ClassVar[list[bool]] = [True]

    def __init__(self) -> None:
        super().__init__()
        self.is_open[0] = True

    def step(self, action: Any) -> Any:
        if not self.is_open[0]:
            raise RuntimeError("no display")
        return super().step(action)

    def close(self) -> None:
        self.is_open[0] = False


ONLY_ONE = Drift()


def always_the_same() -> Drift:
    return ONLY_ONE


def with_a_lock() -> Callable[[], Drift]:
    lock = threading.Lock()

    def make() -> Drift:
        with lock:
            return Drift()

    return make


# Around it.


class RaisesInRender(Drift):
    def render(self) -> Any:
        raise RuntimeError("no display")


class FloatPicture(Drift):
    def render(self) -> Any:
        return np.zeros((4, 4, 3))


class ListForMetadata(Drift):
    metadata = ["rgb_array"]


class RaisesInClose(Drift):
    def close(self) -> None:
        raise OSError("busy")


class ClosesOnce(Drift):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise OSError("closed already")
        self.is_closed = True


class Anything(gym.Space):
    """A space of a user's own, which takes every object."""

    def contains(self, x: Any) -> bool:
        return True


NESTED = spaces.Dict({"place": BOX, "turn": spaces.Discrete(2)})
WORD = spaces.Text(3, charset="ab")

# The env, the rule it breaks, how badly, and a part of the message and of the hint.
BROKEN: dict[str, tuple[Any, str, str, str, str]] = {
    "needs arguments": (NeedsSize, "build", "error", "missing 1 required positional argument: 'size'", "defaults"),
    "raises in init": (RaisesInInit, "build", "error", "OSError: no screen (test_contract.py, line ", "traceback"),
    "no env": (dict, "build", "error", "dict is no env", "gymnasium.Env"),
    "no space": (NoSpace, "spaces", "error", "action_space: expected a gymnasium Space, got None", "in __init__"),
    "list for space": (ListForSpace, "spaces", "error", "observation_space: expected a gymnasium Space", "in __init__"),
    "space moves": (WidensInReset, "spaces", "error", "observation_space was Box(-2.0", "once, in __init__"),
    "twins differ": (GrowsWithEachInstance, "spaces", "error", "a second instance differs", "pool"),
    "no seed": (NoSeed, "reset", "error", "unexpected keyword argument 'seed'", "def reset(self, *, seed=None"),
    "no options": (NoOptions, "reset", "error", "unexpected keyword argument 'options'", "options=None"),
    "obs alone": (ObservationAlone, "reset", "error", "got ndarray; this looks like the old Gym API", "return obs, {}"),
    "info None in reset": (NoInfoInReset, "reset", "error", "got an info of type NoneType", "return obs, {}"),
    "reset raises": (RaisesInReset, "reset", "error", "raised ZeroDivisionError: nothing to divide (test_c", "Follow"),
    "old step": (OldStep, "step", "error", "a tuple of 4; this looks like the old Gym API", "Split done in two"),
    "step returns a list": (ListFromStep, "step", "error", "got list", "Return obs"),
    "step raises": (RaisesInStep, "step", "error", "step 3 raised IndexError: off the map (test_c", "Follow"),
    "step exits": (ExitsInStep, "step", "error", "step 1 raised SystemExit: 3", "Follow"),
    "shape": (observing(BOX, np.zeros(3, np.float32)), "observation", "error", "expected shape (2,), got (3,)", "(3,)"),
    "column": (observing(BOX, lambda o: o[:, None]), "observation", "error", "got (2, 1)", ".reshape((2,))"),
    "ragged": (observing(BOX, [[1], [1, 2]]), "observation", "error", "ragged", "pad"),
    "kind": (observing(spaces.Discrete(3), 1.0), "observation", "error", "expected dtype int64", ".astype(np.int64)"),
    "key": (observing(NESTED, {"turn": 1}), "observation", "error", "missing ['place']", "Dict("),
    "no dict": (observing(NESTED, (1, 2)), "observation", "error", "expected a dict with keys", "Dict("),
    "wide dtype": (
        observing(BOX, lambda o: o.astype(float)),
        "observation",
        "warning",
        "observation is float64, but its space says float32",
        ".astype(np.float32)",
    ),
    "list": (observing(BOX, lambda o: o.tolist()), "observation", "warning", "a list, not an array", "np.array("),
    "above": (
        observing(NESTED, {"place": np.array([0, 2.5], np.float32), "turn": 1}),
        "bounds",
        "error",
        "observation['place'][1] is 2.5, above its upper bound 2.0 (first seen in reset(seed=0); ",
        "np.clip",
    ),
    "below": (observing(spaces.Discrete(3, start=1), 0), "bounds", "error", "0, below its lower bound 1", "Widen"),
    "nan": (observing(BOX, np.array([0, np.nan], np.float32)), "bounds", "error", "observation[1] is NaN", "0/0"),
    "word": (observing(WORD, "abc"), "bounds", "error", "'abc' is not in Text", "contains()"),
    "reward array": (returning(reward=np.ones(1)), "reward", "error", "got ndarray", ".item()"),
    "reward None": (returning(reward=None), "reward", "error", "got NoneType", "float(reward)"),
    "reward inf": (returning(reward=np.inf), "reward", "error", "expected a finite number, got inf", "division"),
    "flag int": (returning(truncated=int), "flags", "error", "truncated: expected a bool, got int", "bool(truncated)"),
    "flag None": (returning(terminated=None), "flags", "error", "terminated: expected a bool", "bool(terminated)"),
    "info None": (returning(info=None), "info", "error", "info: expected a dict, got NoneType", "empty one"),
    "info object": (returning(info={"a": {"f": len}}), "plain-data", "warning", "info['a']['f']: ", "allow_pickle"),
    "obs object": (observing(Anything(), lambda _: len), "plain-data", "warning", "observation: ", "allow_pickle"),
    "endless": (Endless, "episode-end", "note", f"no episode ended within {STEPS} steps", "max_episode_steps"),
    "terminates on time": (
        TerminatesOnTime,
        "time-limit",
        "note",
        "terminated after exactly 5 steps",
        "truncated=True",
    ),
    "limit": (IgnoresItsLimit, "time-limit", "warning", "past the 4 steps", "gymnasium.make"),
    "one buffer": (OneBuffer, "aliasing", "warning", "was changed by the next", "copy"),
    "reset's buffer": (ResetHandsOutState, "aliasing", "warning", "the observation that reset() returned", "copy"),
    "one info": (OneInfo, "aliasing", "warning", "the info that step() returned was changed by", "dict(info)"),
    "action": (ScalesTheAction, "action", "warning", "step changes the action it is given: action[0] is", "copy"),
    "random": (ShufflesInStep, "global-random", "warning", "step() draws from the global generator random", "self.np"),
    "np.random": (
        SeedsNumpyInInit,
        "global-random",
        "warning",
        "__init__() draws from the global generator np",
        "self",
    ),
    "entropy": (OwnEntropy, "same-seed", "error", "seed 0 gave two different episodes", "super().reset(seed=seed)"),
    "entropy later": (FreshEntropyWithoutSeed, "same-seed", "error", "begun by reset() without a seed", "go on with"),
    "memory": (RemembersItsLastEpisode, "same-seed", "error", "reward is", "let reset set everything"),
    "init draws": (DrawsInInit, "same-seed", "error", "in another instance", "__init__"),
    "no chance": (NoChance, "other-seed", "warning", "seeds 0 to 8 all give the same episodes", "no chance"),
    "repeats": (RepeatsItself, "next-episode", "warning", "all repeated the episode of seed 0", "only if a seed"),
    "shared place": (SharesItsPlace, "instances", "error", "while a second instance plays", "class attribute"),
    "closes for all": (ClosesForAll, "instances", "error", "raised RuntimeError: no display", "Follow"),
    "one object": (always_the_same, "instances", "error", "the same object", "new env in every call"),
    "lock": (with_a_lock(), "shipping", "warning", "env_fn.closure.lock", "inside the factory"),
    "undeclared mode": (lambda: Drift("ansi"), "render", "warning", "render_mode is 'ansi'", "['rgb_array', 'ansi']"),
    "render raises": (lambda: RaisesInRender("rgb_array"), "render", "error", "raised RuntimeError", "rgb_array"),
    "picture": (lambda: FloatPicture("rgb_array"), "render", "error", "float64 of shape (4, 4, 3)", "array"),
    "metadata": (ListForMetadata, "render", "error", "metadata: expected a dict, got list", "render_modes"),
    "close raises": (RaisesInClose, "close", "error", "close() raised OSError: busy", "gymnasium.Env"),
    "closes once": (ClosesOnce, "close", "warning", "a second close() raised OSError", "Do nothing"),
}


def keeping(env: Any, **options: Any) -> list[Finding]:
    return check_env(env, steps=STEPS, **options)


@pytest.mark.parametrize("case", BROKEN)
def test_a_breach_is_found_and_nothing_else(case: str) -> None:
    env, rule, severity, message, hint = BROKEN[case]
    found = keeping(env)
    assert {finding.rule for finding in found} == {rule}, found
    first = found[0]
    assert first.severity == severity
    assert message in first.message
    assert hint in first.hint


def test_every_rule_has_an_env_that_breaks_it() -> None:
    assert {rule for _, rule, *_ in BROKEN.values()} == set(RULES)


@pytest.mark.parametrize("env", [Drift, TruncatesOnTime, lambda: Drift("rgb_array")], ids=["plain", "limit", "drawn"])
def test_nothing_is_found_where_nothing_is_wrong(env: Any) -> None:
    report = examine(env, steps=STEPS)
    assert report.findings == ()
    assert {report.verdict(rule) for rule in RULES} == {"ok"}


def arrays_of_lengths(*lengths: int) -> np.ndarray[Any, Any]:
    """Arrays of several lengths, in an array of objects."""
    items = np.empty(len(lengths), object)
    items[:] = [np.arange(length) for length in lengths]
    return items


def test_an_info_may_hold_arrays_of_arrays() -> None:
    assert keeping(returning(info=lambda info: {"boxes": arrays_of_lengths(2, 2 + info["t"])})) == []


def test_arrays_of_arrays_are_compared_item_by_item() -> None:
    assert difference(arrays_of_lengths(2, 3), arrays_of_lengths(2, 3), "boxes") is None
    assert (
        difference(arrays_of_lengths(2, 3), arrays_of_lengths(2, 4), "boxes") == "boxes[1] has the shapes (3,) and (4,)"
    )


# Gymnasium has replaced Taxi-v3 by Taxi-v4 at some point.
TAXI = max(name for name in gym.registry if name.startswith("Taxi-"))


@pytest.mark.parametrize("name", ["CartPole-v1", "FrozenLake-v1", TAXI])
@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_gymnasiums_own_keep_all_rules(name: str) -> None:
    assert check_env(gym.spec(name), steps=250) == []


@pytest.mark.parametrize("name", TASKS)
def test_shipped_envs_have_no_errors(name: str) -> None:
    task = TASKS[name]
    found = keeping(lambda: task.load()(**task.kwargs))
    assert {(f.rule, f.severity) for f in found} <= {
        ("episode-end", "note"),
        ("time-limit", "note"),
        ("other-seed", "warning"),
    }


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    names = []

    def add(name: str, env: Any, **options: Any) -> str:
        gym.register(name, env, **options)
        names.append(name)
        return name

    yield add
    for name in names:
        del gym.registry[name]


def test_what_wrappers_hide_is_found(register: Callable[..., str]) -> None:
    """Gymnasium's time limit takes the tuple apart, and its words for a short one would help nobody."""
    found = keeping(register("Old-v0", OldStep, max_episode_steps=10))
    assert [finding.rule for finding in found] == ["step"]
    assert "old Gym API" in found[0].message


def test_all_of_the_old_interface_is_told_at_once(register: Callable[..., str]) -> None:
    class Old(OldStep):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()[0]

    for env in (Old, register("Older-v0", Old, max_episode_steps=10)):
        assert [finding.rule for finding in keeping(env)] == ["reset", "reset", "step"]


def test_chance_that_is_declared_is_no_error(register: Callable[..., str]) -> None:
    found = keeping(register("Chance-v0", OwnEntropy, nondeterministic=True))
    assert [(finding.rule, finding.severity) for finding in found] == [("same-seed", "note")]


def test_several_breaches_in_one_step_are_all_found() -> None:
    found = keeping(returning(reward=np.ones(1), terminated=lambda t: int(t), truncated=int, info=None))
    assert [finding.rule for finding in found] == ["reward", "flags", "flags", "info"]


def test_what_is_seen_often_is_told_once() -> None:
    (finding,) = keeping(returning(truncated=int))
    assert finding.message.endswith(f"(first seen in step 1; {STEPS} times in all)")


def test_rules_without_a_chance_are_skipped() -> None:
    report = examine(RaisesInReset, steps=STEPS)
    assert report.verdict("reset") == "error"
    unseen = ("reward", "bounds", "aliasing", "action", "global-random", "same-seed")
    assert {report.verdict(rule) for rule in unseen} == {"skipped"}
    assert report.verdict("close") == report.verdict("shipping") == "ok"


def test_everything_that_was_built_is_closed() -> None:
    closed: list[int] = []
    built: list[int] = []

    class Counted(Drift):
        def __init__(self) -> None:
            super().__init__()
            built.append(id(self))

        def close(self) -> None:
            closed.append(id(self))

    assert keeping(Counted) == []
    assert len(built) > 2
    assert set(closed) == set(built)


def test_a_buffer_is_found_in_both_calls() -> None:
    messages = [finding.message for finding in keeping(OneBuffer)]
    assert len(messages) == 2
    assert messages[0].startswith("the observation that reset() returned")
    assert messages[1].startswith("the observation that step() returned was changed by the next")


def test_ctrl_c_is_the_users() -> None:
    class Interrupted(Drift):
        def step(self, action: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keeping(Interrupted)


def test_progress_is_told() -> None:
    told: list[tuple[str, int]] = []
    examine(Drift, steps=STEPS, on_progress=lambda doing, steps: told.append((doing, steps)))
    steps = [done for _, done in told]
    assert steps == sorted(steps)
    assert steps[-1] > STEPS
    assert list(dict.fromkeys(doing for doing, _ in told)) == ["stepping", "comparing seeds and instances", "closing"]


def test_global_generators_are_left_as_they_were() -> None:
    before = random.getstate(), np.random.get_state()[1].tobytes()  # type: ignore[index,union-attr]
    keeping(Drift)
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before  # type: ignore[index,union-attr]


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        ("NoSuchEnv-v0", {}, "NoSuchEnv"),
        (Drift(), {}, "not the env itself"),
        (Drift, {"steps": 0}, "steps: expected at least 1"),
        (Drift, {"seed": -1}, "seed: expected at least 0"),
    ],
)
def test_what_cannot_be_checked_is_refused(env: Any, options: dict[str, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check_env(env, **options)
