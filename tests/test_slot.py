"""One env under the boundary rule."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import ArgumentError, SpecError
from shoal.slot import Autoreset, Slot, copy_leaves
from shoal.testing import CountingEnv, GraphEnv, ScriptedEnv, WrappedBufferEnv, read_row


class Told(NamedTuple):
    """What a slot says about one row."""

    step: int
    reward: float
    terminated: bool
    truncated: bool
    elapsed: int
    first: bool
    final: int | None = None


def told(slot: Slot, row: tuple[Any, ...]) -> Told:
    obs, reward, terminated, truncated, _ = row
    final = None if slot.final is None else read_row(slot.final[0]).step
    return Told(read_row(obs).step, reward, terminated, truncated, slot.elapsed, slot.first, final)


def play(autoreset: Autoreset, steps: int, limit: int | None = None, **counting: Any) -> list[Told]:
    slot = Slot(CountingEnv(**{"ending": "terminated", **counting}), autoreset, limit)
    rows = [told(slot, slot.reset(seed=0))]
    rows += [told(slot, slot.step(1)) for _ in range(steps)]
    return rows


START = Told(0, 0.0, False, False, 0, True)


# ---------------------------------------------------------------------- the boundary rule


def test_next_step_resets_on_the_step_after_the_last() -> None:
    assert play(Autoreset.NEXT_STEP, 5, episode_length=2) == [
        START,
        Told(1, 1.0, False, False, 1, False),
        Told(2, 2.0, True, False, 2, False),
        START,
        Told(1, 3.0, False, False, 1, False),
        Told(2, 4.0, True, False, 2, False),
    ]


def test_same_step_resets_with_the_last_step() -> None:
    assert play(Autoreset.SAME_STEP, 4, episode_length=2) == [
        START,
        Told(1, 1.0, False, False, 1, False),
        Told(0, 2.0, True, False, 2, True, final=2),
        Told(1, 3.0, False, False, 1, False),
        Told(0, 4.0, True, False, 2, True, final=2),
    ]


class Thing:
    """An observation of a kind that only its env knows."""

    step = 0


class ReusingEnv(CountingEnv):
    """Hands out one and the same object, and changes it."""

    def __init__(self) -> None:
        super().__init__(episode_length=2, ending="terminated")
        self.thing = Thing()

    def reset(self, **wishes: Any) -> Any:
        self.thing.step = read_row(super().reset(**wishes)[0]).step
        return self.thing, {}

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        self.thing.step = read_row(obs).step
        return self.thing, *rest


def test_the_last_observation_is_not_the_next_episodes_even_if_the_env_reuses_an_object() -> None:
    slot = Slot(ReusingEnv(), Autoreset.SAME_STEP)
    slot.reset(seed=0)
    slot.step(1)
    obs = slot.step(1)[0]
    assert slot.final is not None
    assert (slot.final[0].step, obs.step) == (2, 0)


def test_same_step_with_episodes_of_one_step() -> None:
    row = Told(0, 1.0, True, False, 1, True, final=1)
    assert play(Autoreset.SAME_STEP, 3, episode_length=1) == [START, *(row._replace(reward=n) for n in (1.0, 2.0, 3.0))]


def test_disabled_leaves_the_end_to_the_caller() -> None:
    slot = Slot(CountingEnv(episode_length=2, ending="truncated"), Autoreset.DISABLED)
    slot.reset(seed=0)
    slot.step(1)
    assert told(slot, slot.step(1)) == Told(2, 2.0, False, True, 2, False)
    assert told(slot, slot.reset()) == START
    assert told(slot, slot.step(1)) == Told(1, 3.0, False, False, 1, False)


@pytest.mark.parametrize("autoreset", Autoreset)
def test_a_reset_of_the_callers_ends_any_episode(autoreset: Autoreset) -> None:
    slot = Slot(CountingEnv(episode_length=3, ending="both"), autoreset)
    for steps in range(4):
        slot.reset(seed=5)
        for _ in range(steps):
            slot.step(0)
        assert told(slot, slot.reset(seed=5)) == START
        assert told(slot, slot.step(0)) == Told(1, 1.0, False, False, 1, False)


def test_the_action_of_a_resetting_step_is_ignored() -> None:
    slot = Slot(CountingEnv(episode_length=1), Autoreset.NEXT_STEP)
    slot.reset(seed=0)
    slot.step(1)
    assert read_row(slot.step(4)[0]).action == -1


@pytest.mark.parametrize("autoreset", Autoreset)
@given(flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12), data=st.data())
def test_every_step_of_the_env_is_told_once_and_in_order(
    autoreset: Autoreset, flags: list[tuple[bool, bool]], data: st.DataObject
) -> None:
    limit = data.draw(st.none() | st.integers(1, 4))
    script = [(float(number), *pair, {"number": number}) for number, pair in enumerate(flags)]
    slot = Slot(ScriptedEnv(script), autoreset, limit)
    slot.reset(seed=0)
    over, elapsed = False, 0
    numbers = []
    while len(numbers) < 2 * len(script):
        if over and autoreset is Autoreset.DISABLED:
            slot.reset()
            over, elapsed = False, 0
        _, reward, terminated, truncated, info = slot.step(0)
        if over and autoreset is Autoreset.NEXT_STEP:
            assert (reward, terminated, truncated, info, slot.elapsed, slot.first) == (0.0, False, False, {}, 0, True)
            over, elapsed = False, 0
            continue
        elapsed = 1 if over else elapsed + 1
        number, scripted_terminated, scripted_truncated, _ = script[len(numbers) % len(script)]
        assert (reward, terminated) == (number, scripted_terminated)
        assert truncated == (scripted_truncated or (limit is not None and elapsed >= limit))
        over = terminated or truncated
        assert slot.elapsed == elapsed
        assert slot.first == (over and autoreset is Autoreset.SAME_STEP)
        last_info = slot.final[1] if slot.final is not None else info
        assert (slot.final is not None) == slot.first
        numbers.append(last_info["number"])
    assert numbers == [number % len(script) for number in range(len(numbers))]


# ---------------------------------------------------------------------- time limits


@pytest.mark.parametrize(
    ("ending", "length", "flags"),
    [
        ("terminated", 9, (False, True)),
        ("terminated", 3, (True, True)),
        ("truncated", 3, (False, True)),
        ("both", 3, (True, True)),
        ("terminated", 2, None),
    ],
    ids=["the limit alone", "both at once", "truncated twice", "both and the limit", "before the limit"],
)
def test_the_limit_truncates_the_step_it_falls_on(ending: str, length: int, flags: tuple[bool, bool] | None) -> None:
    rows = play(Autoreset.DISABLED, min(length, 3), limit=3, episode_length=length, ending=ending)
    last = rows[-1]
    assert (last.terminated, last.truncated) == (flags or (True, False))
    assert not any(row.terminated or row.truncated for row in rows[:-1])


@pytest.mark.parametrize(("autoreset", "period"), [(Autoreset.NEXT_STEP, 4), (Autoreset.SAME_STEP, 3)])
def test_the_limit_counts_every_episode_anew(autoreset: Autoreset, period: int) -> None:
    rows = play(autoreset, 12, limit=3, episode_length=50)[1:]
    assert [row.truncated for row in rows] == [number % period == 2 for number in range(12)]


# ---------------------------------------------------------------------- finals


def test_the_last_observation_survives_an_env_that_reuses_its_buffer() -> None:
    slot = Slot(WrappedBufferEnv(episode_length=2), Autoreset.SAME_STEP)
    slot.reset(seed=0)
    slot.step(0)
    obs, *_ = slot.step(0)
    assert slot.final is not None
    assert (read_row(slot.final[0]).step, read_row(obs).step) == (2, 0)


class ReusedInfo(CountingEnv):
    """Has one info dict, which it updates."""

    def __init__(self, **counting: Any) -> None:
        super().__init__(**counting)
        self._facts: dict[str, Any] = {}

    def _info(self) -> dict[str, Any]:
        self._facts["t"] = self._step
        return self._facts


def test_the_last_info_survives_an_env_that_reuses_its_dict() -> None:
    slot = Slot(ReusedInfo(episode_length=2), Autoreset.SAME_STEP)
    slot.reset(seed=0)
    slot.step(0)
    *_, info = slot.step(0)
    assert slot.final is not None
    assert (slot.final[1], info) == ({"t": 2}, {"t": 0})


def test_copied_leaves_are_their_own() -> None:
    value = {"a": np.zeros(2), "b": (np.zeros(1), {"c": np.zeros(3)}), "d": "text", "e": 5}
    copy = copy_leaves(value)
    value["a"][:] = 1
    value["b"][0][:] = 1
    value["b"][1]["c"][:] = 1
    assert copy["a"].tolist() == [0, 0]
    assert copy["b"][0].tolist() == [0]
    assert copy["b"][1]["c"].tolist() == [0, 0, 0]
    assert (copy["d"], copy["e"]) == ("text", 5)


def test_copied_graphs_are_their_own() -> None:
    env = GraphEnv()
    graph, _ = env.reset(seed=0)
    copy = copy_leaves(graph)
    graph.nodes[:] = 9
    assert type(copy) is type(graph)
    assert (copy.nodes <= 1).all()


# ---------------------------------------------------------------------- seeds and options


def test_seed_and_options_reach_the_env() -> None:
    env = CountingEnv()
    slot = Slot(env, Autoreset.NEXT_STEP)
    slot.reset(seed=7, options={"level": 2})
    assert (env.np_random_seed, env.last_options, slot.seed) == (7, {"level": 2}, 7)
    slot.reset()
    assert (env.np_random_seed, env.last_options, slot.seed) == (7, None, 7)


@pytest.mark.parametrize("autoreset", [Autoreset.NEXT_STEP, Autoreset.SAME_STEP])
def test_automatic_resets_have_neither_seed_nor_options(autoreset: Autoreset) -> None:
    env = CountingEnv(episode_length=1)
    slot = Slot(env, autoreset)
    slot.reset(seed=7, options={"level": 2})
    slot.step(0)
    slot.step(0)
    assert env.last_options is None
    assert slot.seed == 7


# ---------------------------------------------------------------------- what an env may return


class FixedEnv:
    """Returns what it was given."""

    observation_space = action_space = spaces.Discrete(2)

    def __init__(self, step: Any = None, reset: Any = (0, {})) -> None:
        self.step_result = step
        self.reset_result = reset

    def reset(self, **kwargs: Any) -> Any:
        return self.reset_result

    def step(self, action: Any) -> Any:
        return self.step_result


def step_with(result: Any, check: str = "always") -> Any:
    slot = Slot(FixedEnv(result), Autoreset.DISABLED, check=check)
    slot.reset()
    return slot.step(0)


GOOD_REWARDS = [
    1,
    -0.5,
    True,
    np.float16(2),
    np.float32(2),
    np.float64(2),
    np.int8(2),
    np.uint16(2),
    np.bool_(True),
    np.array(1.5),
    1.7e308,
    np.longdouble(1),
]
BAD_REWARDS = [
    (None, "reward: expected a number, got NoneType None"),
    ("1", "reward: expected a number, got str '1'"),
    (np.str_("1"), "reward: expected a number, got str_"),
    ([1.0], "reward: expected a number, got list"),
    (np.array([1.0]), "reward: expected a number, got ndarray"),
    (np.array("1"), "reward: expected a number, got ndarray"),
    (1 + 2j, "reward: expected a number, got complex"),
    (np.complex128(1), "reward: expected a number, got complex128"),
    (float("nan"), "reward: expected a finite number, got nan"),
    (float("inf"), "reward: expected a finite number, got inf"),
    (np.float32("inf"), "reward: expected a finite number, got .*inf"),
    (np.float32("-inf"), "reward: expected a finite number, got .*-inf"),
    (np.float16("inf"), "reward: expected a finite number, got .*inf"),
    (np.array(np.nan), "reward: expected a finite number, got .*nan"),
    (10**400, "reward: expected a finite number"),
]
BAD_FLAGS = [1, 0, None, "True", 0.0, np.int64(1), np.array([True]), np.array(1)]


@pytest.mark.parametrize("reward", GOOD_REWARDS, ids=repr)
def test_any_finite_number_is_a_reward(reward: Any) -> None:
    assert step_with((0, reward, False, False, {}))[1] is reward


@pytest.mark.parametrize(("reward", "message"), BAD_REWARDS, ids=lambda value: repr(value)[:30])
def test_anything_else_is_no_reward(reward: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        step_with((0, reward, False, False, {}))


@pytest.mark.parametrize("flag", [True, np.bool_(True), np.array(True)], ids=repr)
def test_bools_are_flags(flag: Any) -> None:
    assert step_with((0, 0.0, flag, False, {}))[2] is flag
    assert step_with((0, 0.0, False, flag, {}))[3] is flag


@pytest.mark.parametrize("flag", BAD_FLAGS, ids=repr)
def test_anything_else_is_no_flag(flag: Any) -> None:
    kind = type(flag).__name__
    with pytest.raises(SpecError, match=f"terminated: expected a bool, got {kind}"):
        step_with((0, 0.0, flag, False, {}))
    with pytest.raises(SpecError, match=f"truncated: expected a bool, got {kind}"):
        step_with((0, 0.0, False, flag, {}))


@pytest.mark.parametrize("info", [None, [], "x", ("a", 1)], ids=repr)
def test_an_info_is_a_dict(info: Any) -> None:
    with pytest.raises(SpecError, match=f"info: expected a dict, got {type(info).__name__}"):
        step_with((0, 0.0, False, False, info))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ((0, 0.0, False, {}), r"got a tuple of 4; this looks like the old Gym API \(obs, reward, done, info\)"),
        ((0, 0.0), "got a tuple of 2$"),
        ((), "got a tuple of 0$"),
        ([0, 0.0, False, False, {}], "got list$"),
        (None, "got NoneType$"),
    ],
    ids=["four", "two", "none", "list", "nothing"],
)
def test_a_step_is_a_tuple_of_five(result: Any, message: str) -> None:
    with pytest.raises(SpecError, match=rf"step must return \(obs, reward, terminated, truncated, info\), {message}"):
        step_with(result)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (0, "got int"),
        ((0,), "got a tuple of 1"),
        ((0, {}, 1), "got a tuple of 3"),
        ((0, None), "got a tuple of 2"),
        ([0, {}], "got list"),
    ],
    ids=repr,
)
def test_a_reset_is_an_observation_and_an_info(result: Any, message: str) -> None:
    with pytest.raises(SpecError, match=rf"reset must return \(observation, info dict\), {message}"):
        Slot(FixedEnv(reset=result), Autoreset.NEXT_STEP).reset()


def test_checks_may_end_with_the_first_step() -> None:
    env = FixedEnv((0, 0.0, False, False, {}))
    slot = Slot(env, Autoreset.DISABLED, check="first")
    slot.reset()
    slot.step(0)
    env.step_result = (0, float("nan"), False, False, {})
    assert np.isnan(slot.step(0)[1])


def test_the_first_step_is_checked_if_no_other_is() -> None:
    with pytest.raises(SpecError, match="reward"):
        step_with((0, None, False, False, {}), check="first")


def test_checks_may_be_off() -> None:
    assert step_with((0, None, 0, 0, {}), check="off") == (0, None, 0, 0, {})


# ---------------------------------------------------------------------- names of the modes


@pytest.mark.parametrize("mode", Autoreset)
def test_a_mode_has_three_names(mode: Autoreset) -> None:
    for name in (mode, mode.value, mode.value.upper(), AutoresetMode[mode.name]):
        assert Autoreset.parse(name) is mode


@pytest.mark.parametrize("value", ["never", "", None, 3, AutoresetMode])
def test_there_are_no_other_modes(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"autoreset: expected one of \['next_step', 'same_step', 'disabled'\]"):
        Autoreset.parse(value)


# ---------------------------------------------------------------------- resets that may be left to the caller


class Worn(CountingEnv):
    """Cannot be reset for the third time."""

    resets = 0

    def reset(self, **wishes: Any) -> Any:
        self.resets += 1
        if self.resets == 3:
            raise ZeroDivisionError("worn out")
        return super().reset(**wishes)


def test_the_first_reset_tells_nothing_of_the_next_and_a_quick_one_does() -> None:
    slot = Slot(CountingEnv(episode_length=1, ending="terminated"), Autoreset.SAME_STEP, quick_reset_s=60.0)
    slot.reset(seed=0)
    assert told(slot, slot.step(1)) == Told(1, 1.0, True, False, 1, False)
    slot.reset()
    assert told(slot, slot.step(1)) == Told(0, 2.0, True, False, 1, True, final=1)
    assert told(slot, slot.step(1)) == Told(0, 3.0, True, False, 1, True, final=1)


def test_an_env_with_slow_resets_is_left_at_its_end() -> None:
    slot = Slot(CountingEnv(episode_length=1, ending="terminated"), Autoreset.SAME_STEP, quick_reset_s=0.0)
    for total in (1.0, 2.0, 3.0):
        slot.reset()
        assert told(slot, slot.step(1)) == Told(1, total, True, False, 1, False)


class Reluctant(CountingEnv):
    """Says of every second episode that it is to be left at its end."""

    leaves_end = False

    def reset(self, **wishes: Any) -> Any:
        self.leaves_end = not self.leaves_end
        return super().reset(**wishes)


def test_an_env_that_wants_to_be_left_at_its_end_is_left() -> None:
    slot = Slot(Reluctant(episode_length=1, ending="terminated"), Autoreset.SAME_STEP, quick_reset_s=60.0)
    slot.reset(seed=0)
    slot.reset()
    assert told(slot, slot.step(1)) == Told(0, 1.0, True, False, 1, True, final=1)
    assert told(slot, slot.step(1)) == Told(1, 2.0, True, False, 1, False)
    assert told(slot, slot.reset()) == START
    assert told(slot, slot.step(1)) == Told(0, 3.0, True, False, 1, True, final=1)


def test_where_every_end_is_followed_by_a_beginning_nobody_is_left() -> None:
    slot = Slot(Reluctant(episode_length=1, ending="terminated"), Autoreset.SAME_STEP)
    slot.reset(seed=0)
    assert told(slot, slot.step(1)) == Told(0, 1.0, True, False, 1, True, final=1)


def test_a_reset_that_fails_within_a_step_is_told_to_the_one_who_resets() -> None:
    slot = Slot(Worn(episode_length=1, ending="terminated"), Autoreset.SAME_STEP, quick_reset_s=60.0)
    slot.reset(seed=0)
    slot.step(1)
    slot.reset()
    assert told(slot, slot.step(1)) == Told(1, 2.0, True, False, 1, False)
    with pytest.raises(ZeroDivisionError, match="worn out"):
        slot.reset()
    assert told(slot, slot.reset()) == START


def test_a_row_after_one_that_was_taken_back_brings_flags_of_its_own() -> None:
    slot = Slot(CountingEnv(episode_length=9), Autoreset.NEXT_STEP)
    slot.reset(seed=1)
    slot.step(0)
    assert slot.is_mid_episode
    slot.take_back()
    assert not slot.is_mid_episode  # the row that stands is that of the reset, and says that it is first
