"""Envs that fail in compiled code: the one that did is named, the others move on, and the pool goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.errors import EnvResetError, EnvStepError, SpecError, StateError
from shoal.kernel import KernelEnv

pytest.importorskip("numba")

from kernel_kinds import LASTING, Drift, Fading, assert_same, play, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal import Pool

SMALL, LARGE = 5, 700
AT_3 = "the drift has run aground"


@pytest.fixture(params=[(SMALL, 1), (LARGE, 1), (LARGE, 2), (LARGE, 3)], ids=lambda p: f"{p[0]} envs, {p[1]} threads")
def size(request: pytest.FixtureRequest) -> tuple[int, int]:
    """Pools that run in one go, and pools that run in slices."""
    return request.param


def drifts(make_pool: Callable[..., Pool], size: tuple[int, int], trouble: dict[int, dict[str, int]]) -> Pool:
    """A pool in which the envs of ``trouble`` have these constants; no episode ends."""
    num_envs, num_workers = size
    pool = make_pool(Drift, num_envs, engine="kernel", num_workers=num_workers, env_kwargs=LASTING)
    force_slices(pool)
    for env_id, constants in trouble.items():
        for name, value in constants.items():
            pool.set_attr(name, value, env_id=[env_id])
    return pool


def force_slices(pool: Any) -> None:
    """Run large batches in slices always, instead of when it has proved to be faster."""
    threads = pool.engine._threads
    if threads.num_threads > 1:
        threads.run = threads._run_split


def zeros(pool: Pool) -> Any:
    return np.zeros(pool.num_envs, np.int64)


def places(pool: Pool) -> list[int]:
    """The first env, the last, and some around where slices meet."""
    last = pool.num_envs - 1
    return sorted({0, last // 3, last // 2, last - 1, last} - {3})


# ---------------------------------------------------------------------- one env


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_the_env_that_raises_is_named_with_step_seed_and_message(
    place: str, size: tuple[int, int], make_pool: Callable[..., Pool]
) -> None:
    env_id = {"first": 0, "middle": size[0] // 2, "last": size[0] - 1}[place]
    pool = drifts(make_pool, size, {env_id: {"fail_at": 2}})
    pool.reset(seed=30)
    pool.step(zeros(pool))
    with pytest.raises(EnvStepError, match=f"step failed in env {env_id}, step 1, seed {30 + env_id}: ") as caught:
        pool.step(zeros(pool))
    error = caught.value
    assert f"ValueError: {AT_3}" in str(error)
    assert (error.env_ids, error.where.phase) == ((env_id,), "step")
    assert isinstance(error.__cause__, ValueError)
    assert "Traceback" in error.remote_traceback


def test_the_author_sees_the_line_that_raised(make_pool: Callable[..., Pool]) -> None:
    pool = drifts(make_pool, (SMALL, 1), {1: {"fail_at": 1}})
    pool.reset(seed=1)
    with pytest.raises(EnvStepError) as caught:
        pool.step(zeros(pool))
    assert "kernel_kinds.py" in caught.value.remote_traceback


def test_the_other_envs_have_moved_and_their_rows_can_be_received(
    size: tuple[int, int], make_pool: Callable[..., Pool]
) -> None:
    pool, well = drifts(make_pool, size, {}), drifts(make_pool, size, {})
    failing = places(pool)[2]
    pool.set_attr("fail_at", 2, env_id=[failing])
    for each in (pool, well):
        each.reset(seed=1)
        each.step(zeros(each))
    expected = rows_of(well.step(zeros(well)))
    with pytest.raises(EnvStepError):
        pool.step(zeros(pool))
    batch = pool.recv()
    others = [i for i in range(pool.num_envs) if i != failing]
    assert batch.env_id.tolist() == others
    got = rows_of(batch)
    for name in ("obs", "reward", "terminated", "elapsed_step"):
        np.testing.assert_array_equal(got[name], expected[name][others], err_msg=name)


def test_an_env_that_failed_is_refused_until_it_is_reset(size: tuple[int, int], make_pool: Callable[..., Pool]) -> None:
    pool = drifts(make_pool, size, {3: {"fail_at": 2}})
    pool.reset(seed=1)
    pool.step(zeros(pool))
    with pytest.raises(EnvStepError):
        pool.step(zeros(pool))
    pool.recv()
    with pytest.raises(StateError, match=r"envs \[3\] failed earlier \(ValueError: the drift"):
        pool.step(zeros(pool))
    with pytest.raises(StateError):
        pool.step([0], env_id=[3])
    assert pool.step([0, 0], env_id=[2, 4]).elapsed_step.tolist() == [3, 3]
    pool.reset(env_id=[3])
    assert pool.step(zeros(pool)).elapsed_step[:5].tolist() == [3, 3, 4, 1, 4]
    assert pool.stats().faults == 1


@pytest.mark.slow
def test_a_pool_can_start_over_after_a_fault_as_if_nothing_had_been(
    size: tuple[int, int], make_pool: Callable[..., Pool]
) -> None:
    pool = drifts(make_pool, size, {0: {"fail_at": 1}})
    pool.reset(seed=1)
    with pytest.raises(EnvStepError):
        pool.step(zeros(pool))
    pool.recv()
    pool.set_attr("fail_at", -1)
    fresh = drifts(make_pool, size, {})
    for each in (pool, fresh):
        each.set_attr("lap", 0)
    assert_same(play(pool, 3), play(fresh, 3))


# ---------------------------------------------------------------------- several envs


def test_all_that_fail_in_one_step_are_named(size: tuple[int, int], make_pool: Callable[..., Pool]) -> None:
    pool = drifts(make_pool, size, {})
    failing = places(pool)
    for i in failing:
        pool.set_attr("fail_at", 1, env_id=[i])
    pool.reset(seed=1)
    with pytest.raises(EnvStepError, match="step failed in env 0,") as caught:
        pool.step(zeros(pool))
    notes = "\n".join(caught.value.__notes__)
    for i in failing[1:]:
        assert f"Also: step failed in env {i}," in notes
    assert set(pool.recv().env_id.tolist()) == set(range(pool.num_envs)) - set(failing)
    assert pool.stats().faults == len(failing)
    pool.set_attr("fail_at", -1)
    pool.reset(env_id=failing)
    assert len(pool.step(zeros(pool))) == pool.num_envs


def test_every_env_may_fail(size: tuple[int, int], make_pool: Callable[..., Pool]) -> None:
    pool = drifts(make_pool, size, {})
    pool.set_attr("fail_at", 1)
    pool.reset(seed=1)
    with pytest.raises(EnvStepError):
        pool.step(zeros(pool))
    assert pool.stats().faults == pool.num_envs
    pool.set_attr("fail_at", -1)
    assert len(pool.reset()) == pool.num_envs
    assert len(pool.step(zeros(pool))) == pool.num_envs


def test_a_fault_in_a_part_of_the_pool_leaves_the_rest_alone(
    size: tuple[int, int], make_pool: Callable[..., Pool]
) -> None:
    pool = drifts(make_pool, size, {2: {"fail_at": 1}, 4: {"fail_at": 1}})
    pool.reset(seed=1)
    ids = [4, 1, 2] if size[0] == SMALL else [*range(size[0] - 1, 0, -1)]
    with pytest.raises(EnvStepError, match=r"env (2|4),"):
        pool.step(np.zeros(len(ids), np.int64), env_id=ids)
    assert pool.recv().env_id.tolist() == [i for i in ids if i not in (2, 4)]
    assert pool.get_attr("count", env_id=[0]) == (0,)
    assert pool.step([0], env_id=[0]).elapsed_step.tolist() == [1]


@pytest.mark.parametrize("ids", [None, [4, 1, 2]], ids=["all", "some"])
def test_an_interrupt_while_faults_are_noted_leaves_no_env_behind_later(
    ids: list[int] | None, make_pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = drifts(make_pool, (SMALL, 1), {1: {"fail_at": 1}, 2: {"fail_at": 1}, 4: {"fail_at": 1}})
    actions = np.zeros(SMALL if ids is None else len(ids), np.int64)
    pool.reset(seed=1)
    engine: Any = pool.engine
    note_fault, noted = engine._note_fault, []

    def interrupted(*args: Any) -> int:
        noted.append(args)
        if len(noted) == 2:
            raise KeyboardInterrupt
        return int(note_fault(*args))

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_note_fault", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.step(actions, env_id=ids)
    pool.reset(seed=1)
    pool.set_attr("fail_at", -1)
    for turn in (1, 2, 3):
        assert set(pool.step(actions, env_id=ids).elapsed_step.tolist()) == {turn}


# ---------------------------------------------------------------------- resets


def test_a_reset_that_raises_names_env_seed_and_message(size: tuple[int, int], make_pool: Callable[..., Pool]) -> None:
    pool = drifts(make_pool, size, {})
    pool.reset(seed=1)
    with pytest.raises(EnvResetError, match=r"reset failed in env 3, .*seed 23: ValueError: the drift is broken"):
        pool.reset(seed=20, options={"broken": True}, env_id=[3])
    assert len(pool.reset(env_id=[3])) == 1
    assert len(pool.step(zeros(pool))) == pool.num_envs
    with pytest.raises(EnvResetError, match="env 0,"):
        pool.reset(options={"broken": True})
    assert len(pool.reset()) == pool.num_envs


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_reset_that_raises_within_a_step_is_a_fault_of_that_step(
    autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    told = []
    for engine in ("kernel", "serial"):
        pool = make_pool(Drift, 3, engine=engine, autoreset=autoreset, env_kwargs=LASTING, max_episode_steps=2)
        pool.reset(seed=1)
        pool.step([0, 0, 0])
        if autoreset == "next_step":
            pool.step([0, 0, 0])
        pool.set_attr("broken", True, env_id=[1])
        with pytest.raises(EnvStepError, match="the drift is broken") as caught:
            pool.step([0, 0, 0])
        told.append(str(caught.value))
        assert pool.recv().env_id.tolist() == [0, 2]
        pool.set_attr("broken", False)
        assert len(pool.reset(env_id=[1])) == 1
        assert pool.step([0, 0, 0]).elapsed_step.tolist() == [1, 1, 1]
    assert told[0] == told[1]


# ---------------------------------------------------------------------- numbers that are none


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_a_reward_that_is_no_number_is_a_fault(autoreset: str, make_pool: Callable[..., Pool]) -> None:
    for engine in ("kernel", "serial"):
        pool = make_pool(Drift, 3, engine=engine, autoreset=autoreset, env_kwargs=[{}, {"nan_at": 1}, {}])
        pool.reset(seed=1)
        with pytest.raises(EnvStepError, match=r"env 1, step \d, seed 2: .*reward: expected a finite number") as caught:
            pool.step([0, 0, 0])
        assert isinstance(caught.value.__cause__, SpecError)
        assert str(caught.value.__cause__) == "reward: expected a finite number, got nan"
        assert pool.recv().env_id.tolist() == [0, 2]


def test_nan_in_the_first_row_after_a_call_is_noticed(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Fading, 2, engine="kernel", on_nan="raise", env_kwargs={"fade_at": 1})
    pool.reset(seed=1)
    pool.get_attr("x")
    with pytest.raises(EnvStepError, match="env 1"):
        pool.step([0], env_id=[1])


# ---------------------------------------------------------------------- views, and faults that are not read


def test_faults_and_views_do_not_disturb_each_other(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 3, engine="kernel", copy=False, env_kwargs=LASTING)
    pool.reset(seed=1)
    view = pool.step([1, 1, 1]).obs
    kept = view.copy()
    pool.set_attr("fail_at", 2, env_id=[1])
    with pytest.raises(EnvStepError):
        pool.step([1, 1, 1])
    np.testing.assert_array_equal(view, kept)


def test_an_asynchronous_pool_gets_rows_around_a_fault(make_pool: Callable[..., Pool]) -> None:
    options: dict[str, Any] = {"engine": "kernel", "batch_size": 2, "env_kwargs": [{"fail_at": 1}] + [{}] * 4}
    pool = make_pool(Drift, 5, **options)
    pool.async_reset(seed=1)
    for _ in range(3):
        pool.recv()
    pool.send([0] * 5, env_id=[0, 1, 2, 3, 4])
    with pytest.raises(EnvStepError, match="env 0"):
        pool.recv()
    assert sorted([*pool.recv().env_id.tolist(), *pool.recv().env_id.tolist()]) == [1, 2, 3, 4]


def test_a_reset_drops_a_fault_that_nobody_has_read(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 2, engine="kernel", env_kwargs={"fail_at": 1})
    pool.reset(seed=1)
    pool.send([0, 0])
    assert len(pool.reset(seed=1)) == 2
    assert pool.stats().faults == 0


# ---------------------------------------------------------------------- code that cannot be compiled

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Sound(KernelEnv):
    """What the envs below would be without their mistake."""

    observation_space = BOX
    action_space = spaces.Discrete(2)
    state = {"x": np.float64}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        obs[0] = obs[1] = 0.0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        obs[0] = obs[1] = 0.0
        return 0.0, False


def unknown_field(env, action, rng, obs):  # type: ignore[no-untyped-def]
    env.x = env.sped
    return 0.0, False


def unknown_name(env, action, rng, obs):  # type: ignore[no-untyped-def]
    env.x = gravitty  # noqa: F821
    return 0.0, False


def unknown_method(env, action, rng, obs):  # type: ignore[no-untyped-def]
    env.x = rng.poisson(3.0)
    return 0.0, False


def unsupported_construct(env, action, rng, obs):  # type: ignore[no-untyped-def]
    with open("file") as file:
        env.x = float(file.read())
    return 0.0, False


def unsupported_value(env, action, rng, obs):  # type: ignore[no-untyped-def]
    env.x = Sound.max_episode_steps
    return 0.0, False


def wrong_value(env, action, rng, obs):  # type: ignore[no-untyped-def]
    env.x = "a word"
    return 0.0, False


def calls_a_broken_one(env, action, rng, obs):  # type: ignore[no-untyped-def]
    _broken(env)
    return 0.0, False


def _broken(env):  # type: ignore[no-untyped-def]
    env.x = env.sped


@pytest.mark.parametrize(
    "step",
    [
        unknown_field,
        unknown_name,
        unknown_method,
        unsupported_construct,
        unsupported_value,
        wrong_value,
        calls_a_broken_one,
    ],
)
def test_a_step_that_cannot_be_compiled_is_shown_to_its_author(step: Any) -> None:
    kind = type("Walk", (Sound,), {"step": step})
    with pytest.raises(SpecError, match=r"^Walk\.step") as caught:
        shoal.make_pool(kind, 2, engine="kernel")
    assert_points_here(caught.value, step)


def test_a_reset_that_cannot_be_compiled_is_shown_to_its_author() -> None:
    def reset(env, rng, obs):  # type: ignore[no-untyped-def]
        env.x = env.sped

    kind = type("Walk", (Sound,), {"reset": reset})
    with pytest.raises(SpecError, match=r"^Walk\.reset") as caught:
        shoal.make_pool(kind, 2, engine="kernel")
    assert_points_here(caught.value, reset)


def returns_three(env, action, rng, obs):  # type: ignore[no-untyped-def]
    return 0.0, False, False


def returns_one(env, action, rng, obs):  # type: ignore[no-untyped-def]
    return 0.0


def returns_nothing(env, action, rng, obs):  # type: ignore[no-untyped-def]
    env.x = 0.0


@pytest.mark.parametrize("step", [returns_three, returns_one, returns_nothing])
def test_a_step_that_returns_something_else_is_told_what_it_must_return(step: Any) -> None:
    kind = type("Walk", (Sound,), {"step": step})
    with pytest.raises(SpecError, match=r"Walk\.step must return \(reward, terminated\), it returns ") as caught:
        shoal.make_pool(kind, 2, engine="kernel")
    assert_points_here(caught.value, step)


def returns_a_word(env, action, rng, obs):  # type: ignore[no-untyped-def]
    return 0.0, "yes"


def takes_too_few(env, action, obs):  # type: ignore[no-untyped-def]
    return 0.0, False


def takes_too_many(env, action, rng, obs, info):  # type: ignore[no-untyped-def]
    return 0.0, False


@pytest.mark.parametrize("step", [returns_a_word, takes_too_few, takes_too_many])
def test_a_step_that_does_not_fit_the_loop_is_a_spec_error_that_names_it(step: Any) -> None:
    kind = type("Walk", (Sound,), {"step": step})
    with pytest.raises(SpecError, match=r"Walk\.step"):
        shoal.make_pool(kind, 2, engine="kernel")


def assert_points_here(error: SpecError, function: Any) -> None:
    """The text names this file and a line of the function."""
    code = function.__code__
    lines = {line for _, _, line in code.co_lines() if line}
    assert "test_kernel_faults.py" in str(error)
    assert "\x1b" not in str(error), "the text has the codes of a terminal's colours"
    assert any(f"line {line}" in str(error) for line in lines | {code.co_firstlineno} | BROKEN_LINES), str(error)


BROKEN_LINES = {line for _, _, line in _broken.__code__.co_lines() if line}


def test_a_kind_that_cannot_be_compiled_leaves_no_thread() -> None:
    kind = type("Walk", (Sound,), {"step": returns_three})
    with pytest.raises(ValueError):  # noqa: PT011 - which one is for the tests above
        shoal.make_pool(kind, 600, engine="kernel", num_workers=2)


class Lamps(KernelEnv):
    """A field that is an array of bools."""

    observation_space = spaces.MultiBinary(2)
    action_space = spaces.Discrete(2)
    state = {"lamps": (np.bool_, 2)}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.lamps[0] = True
        env.lamps[1] = False
        obs[0], obs[1] = env.lamps[0], env.lamps[1]

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.lamps[1] = not env.lamps[1]
        obs[0], obs[1] = env.lamps[0], env.lamps[1]
        return 0.0, False


def test_an_array_of_bools_works_as_a_field_or_is_refused_by_name(make_pool: Callable[..., Pool]) -> None:
    try:
        pool = make_pool(Lamps, 2, engine="kernel")
    except shoal.errors.ShoalError as error:
        assert "Lamps" in str(error)  # noqa: PT017 - either is fine
        assert "lamps" in str(error)  # noqa: PT017
        return
    assert pool.reset(seed=1).obs.tolist() == [[1, 0]] * 2
    assert pool.step([0, 0]).obs.tolist() == [[1, 1]] * 2


# ---------------------------------------------------------------------- messages


@pytest.mark.slow
def test_messages_may_be_put_together_by_the_env(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Talks, 2, engine="kernel")
    pool.reset(seed=1)
    with pytest.raises(EnvStepError, match=r"env 1, .*ValueError: no room for 1"):
        pool.step([0, 1])


class Talks(Sound):
    """Says in its message what went wrong."""

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        if action == 1:
            raise ValueError("no room for " + str(action))
        obs[0] = obs[1] = 1.0
        return 1.0, False
