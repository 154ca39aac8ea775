"""The kernel engine behind a pool: what it takes, what it refuses, how its envs are reached, and who gets it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.build import own_recipe
from shoal.errors import (
    ActionError,
    ArgumentError,
    ClosedPool,
    EnvCallError,
    EnvConstructError,
    EnvResetError,
    NotReset,
    SpecError,
)
from shoal.kernel import KernelEnv
from shoal.testing import CountingEnv, no_leftovers

pytest.importorskip("numba")

import kernel_kinds
from kernel_kinds import MODES, Cell, Drift, Pair, Parts, Switches, assert_same, play, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal import Pool


@pytest.fixture
def pools(make_pool: Callable[..., Pool]) -> Callable[..., Pool]:
    """Pools of the kernel engine."""
    return partial(make_pool, engine="kernel")


def both(make_pool: Callable[..., Pool], kind: Any, num_envs: int, **options: Any) -> tuple[Pool, Pool]:
    compiled, plain = (make_pool(kind, num_envs, engine=engine, **options) for engine in ("kernel", "serial"))
    return compiled, plain


# ---------------------------------------------------------------------- actions


@pytest.mark.parametrize(
    ("kind", "bad", "told"),
    [
        (Drift, [0, 2, 0], "row 1: .*outside"),
        (Drift, [0, 0, -2], "row 2: .*outside"),
        (Drift, np.array([0, 2**40, 0]), "outside"),
        (Drift, [0.0, 0.0, 0.0], "expected dtype int64, got float64"),
        (Drift, [0, 0], r"expected shape \(3,\), got \(2,\)"),
        (Drift, 0, r"expected shape \(3,\), got \(\)"),
        (Drift, np.int64(0), r"expected shape \(3,\), got \(\)"),
        (Drift, np.zeros((3, 1), np.int64), "drop the last axis"),
        (Drift, None, "expected dtype|expected shape"),
        (Drift, np.zeros(3, object), "expected dtype"),
        (Cell, np.float32([[0, 0], [0, np.nan], [0, 0]]), "row 1"),
        (Cell, np.float32([[0, 0], [0, 0], [1.5, 0]]), "row 2: .*outside.*clip"),
        (Cell, np.float64([[0, 0], [0, 0], [0, 1e300]]), "overflows float32"),
        (Cell, np.zeros((3, 2), np.complex64), "expected dtype"),
        (Switches, np.array([[0, 0, 5], [0, 0, 5], [0, -2, 5]]), "row 2: .*outside"),
        (Switches, np.array([[0, 0, 5], [0, 0, 4], [0, 0, 5]]), "row 1: .*outside"),
        (Pair, (np.zeros(3, np.int64), np.full((3, 2), np.nan)), r"action\[1\]: row 0"),
        (Pair, (np.array([0, 4, 0]), np.zeros((3, 2))), r"action\[0\]: row 1"),
        (Parts, {"gear": [0, 0, 0]}, "missing"),
    ],
)
def test_unfit_actions_are_refused_and_nothing_moves(
    kind: type, bad: Any, told: str, make_pool: Callable[..., Pool]
) -> None:
    compiled, plain = both(make_pool, kind, 3, max_episode_steps=100)
    assert_same(*(rows_of(pool.reset(seed=4)) for pool in (compiled, plain)))
    with pytest.raises(ActionError, match=f"(?s){told}") as refusal:
        compiled.step(bad)
    with pytest.raises(ActionError) as same:
        plain.step(bad)
    assert str(refusal.value) == str(same.value)
    for send in (compiled.send, partial(compiled.step, env_id=[2, 0, 1])):
        with pytest.raises(ActionError):
            send(bad)
    # As if nothing had been tried: all states and generators are where they were.
    assert_same(*(play(pool, 3) for pool in (compiled, plain)))


def test_a_refused_batch_leaves_states_as_they_were(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 5)
    pool.reset(seed=1)
    before = pool.snapshot()
    with pytest.raises(ActionError):
        pool.step(np.array([0, 0, 0, 0, 7]))
    after = pool.snapshot()
    for name, array in before.arrays.items():
        np.testing.assert_array_equal(array, after.arrays[name], err_msg=name)


@pytest.mark.parametrize(
    "form",
    [
        lambda a: a.astype(np.int32),
        lambda a: a.astype(np.int8),
        lambda a: a.tolist(),
        lambda a: tuple(a.tolist()),
        lambda a: np.repeat(a, 2)[::2],
        lambda a: a[::-1].copy()[::-1],
        lambda a: a.astype(">i8"),
        lambda a: np.asfortranarray(a),
        lambda a: a.view(type("Sub", (np.ndarray,), {})),
    ],
    ids=["int32", "int8", "list", "tuple", "strided", "reversed", "big-endian", "fortran", "subclass"],
)
def test_every_form_of_the_same_actions_does_the_same(form: Callable[..., Any], pools: Callable[..., Pool]) -> None:
    actions = np.array([-1, 0, 1, 1, -1])
    one, other = pools(Drift, 5), pools(Drift, 5)
    for pool in (one, other):
        pool.reset(seed=2)
    for _ in range(3):
        assert_same(rows_of(one.step(form(actions))), rows_of(other.step(actions)))


def test_arrays_in_another_memory_order_are_read_by_value(pools: Callable[..., Pool]) -> None:
    actions = np.float32([[0.5, -1.5], [-0.25, 2.0], [1.0, 0.0]])
    one, other = pools(Cell, 3), pools(Cell, 3)
    for pool in (one, other):
        pool.reset(seed=2)
    assert_same(rows_of(one.step(np.asfortranarray(actions))), rows_of(other.step(actions)))
    assert_same(rows_of(one.step(actions.astype(np.float64))), rows_of(other.step(actions)))


def test_the_callers_array_is_its_own_again_after_the_call(pools: Callable[..., Pool]) -> None:
    pool = pools(Cell, 2)
    pool.reset(seed=1)
    actions = np.float32([[1.0, 2.0], [1.0, 2.0]])
    pool.send(actions)
    actions[:] = -1.0
    assert pool.recv().reward.tolist() == [5.0, 5.0]
    assert pool.step(np.float32([[0.5, 1.0]] * 2)).reward.tolist() == [2.5, 2.5]


@pytest.mark.parametrize("env_id", [None, [1, 0]])
def test_unbounded_actions_pass_and_nan_does_not(env_id: Any, make_pool: Callable[..., Pool]) -> None:
    far = np.float32([[30.0, -40.0], [np.inf, 2.5]])
    compiled, plain = both(make_pool, Cell, 2, bounded_actions=False)
    for pool in (compiled, plain):
        pool.reset(seed=1)
        with pytest.raises(ActionError, match="row 1"):
            pool.step(np.float32([[0.0, 0.0], [0.0, np.nan]]), env_id)
    far[1, 0] = 77.0
    got, expected = (rows_of(pool.step(far, env_id)) for pool in (compiled, plain))
    assert_same(got, expected)
    assert got["reward"].tolist() == [-50.0, 82.0]


def test_unbounded_is_for_continuous_actions_alone(pools: Callable[..., Pool]) -> None:
    for kind, bad in ((Drift, [5, 5]), (Switches, [[9, 9, 9]] * 2)):
        pool = pools(kind, 2, bounded_actions=False)
        pool.reset(seed=1)
        with pytest.raises(ActionError, match="outside"):
            pool.step(np.array(bad))


# ---------------------------------------------------------------------- implicit resets


@pytest.mark.parametrize("autoreset", MODES)
def test_the_first_step_of_an_env_that_was_never_reset_is_its_reset(
    autoreset: str, make_pool: Callable[..., Pool]
) -> None:
    compiled, plain = both(make_pool, Drift, 4, implicit_reset=True, seed=8, autoreset=autoreset)
    calls: list[tuple[list[int], list[int] | None]] = [
        ([1, 1], [2, 0]),
        ([0, 0, 0, 0], None),
        ([1, 1, 1, 1], None),
        ([1], [3]),
    ]
    for actions, ids in calls:
        assert_same(*(rows_of(pool.step(actions, ids)) for pool in (compiled, plain)))
    assert compiled.latest().elapsed_step.tolist() == [2, 1, 2, 2]


def test_an_implicit_reset_uses_the_seed_of_the_pool(pools: Callable[..., Pool]) -> None:
    explicit, implicit = pools(Drift, 3, seed=8), pools(Drift, 3, seed=8, implicit_reset=True)
    assert_same(rows_of(explicit.reset()), rows_of(implicit.step([0, 0, 0])))
    assert_same(rows_of(explicit.step([0, 1, 0])), rows_of(implicit.step([0, 1, 0])))


def test_without_implicit_resets_a_step_before_the_reset_is_refused(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 3)
    with pytest.raises(NotReset, match=r"envs \[0, 1, 2\] were never reset"):
        pool.step([0, 0, 0])
    pool.reset(env_id=[1])
    with pytest.raises(NotReset, match=r"envs \[0, 2\]"):
        pool.step([0, 0, 0])
    assert len(pool.step([0], env_id=[1])) == 1


# ---------------------------------------------------------------------- talking to envs


def test_fields_can_be_read_and_set_like_attributes(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Drift, 3)
    for pool in (compiled, plain):
        pool.reset(seed=1)
        pool.set_attr("x", [1.0, 2.0, 3.0])
        pool.set_attr("length", 1, env_id=[1])
        pool.set_attr("trail", np.array([5.0, 6.0]), env_id=[2])
    for name in ("x", "count", "gain", "length", "trail", "lap", "board", "render_mode", "origin"):
        assert_same(*(list(pool.get_attr(name)) for pool in (compiled, plain)), name)
    got, expected = (rows_of(pool.step([0, 0, 0])) for pool in (compiled, plain))
    assert_same(got, expected)
    assert got["terminated"][1]


def test_what_was_read_does_not_change_with_the_env(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 1)
    pool.reset(seed=1)
    trail = pool.get_attr("trail")[0]
    kept = trail.copy()
    pool.step([1])
    np.testing.assert_array_equal(trail, kept)
    trail[:] = 100.0
    assert (pool.get_attr("trail")[0] < 100.0).all()


def test_looking_at_a_generator_does_not_move_it(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Drift, 2)
    draws = []
    for pool in (compiled, plain):
        pool.reset(seed=1)
        draws.append([generator.random() for generator in pool.get_attr("np_random")])
    assert draws[0] == draws[1]
    untouched = make_pool(Drift, 2, engine="kernel")
    untouched.reset(seed=1)
    assert_same(rows_of(compiled.step([1, 1])), rows_of(untouched.step([1, 1])))


def test_an_env_can_be_given_another_generator(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Drift, 2)
    for pool in (compiled, plain):
        pool.reset(seed=1)
        pool.set_attr("np_random", np.random.default_rng(3), env_id=[1])
        assert pool.get_attr("np_random_seed")[0] == 1
    assert_same(rows_of(compiled.step([1, 1])), rows_of(plain.step([1, 1])))
    with pytest.raises(EnvCallError, match=r"env 1.*generator: expected PCG64, got MT19937"):
        compiled.set_attr("np_random", np.random.Generator(np.random.MT19937(3)), env_id=[1])


def test_the_seed_of_an_env_can_be_asked_for() -> None:
    for engine in ("kernel", "serial"):
        with shoal.make_vec(Drift, 2, engine=engine) as envs:
            envs.reset(seed=41)
            assert envs.np_random_seed == (41, 42), engine


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda pool: pool.get_attr("nonsense", env_id=[1]), "nonsense"),
        (lambda pool: pool.call("nonsense", env_id=[1]), "nonsense"),
        (lambda pool: pool.set_attr("x", "a word", env_id=[1]), "x: expected a number"),
        (lambda pool: pool.set_attr("count", 2.7, env_id=[1]), "count: expected a number that fits int64, got 2.7"),
        (lambda pool: pool.set_attr("lap", 2**40, env_id=[1]), "lap: expected a number that fits int32"),
        (lambda pool: pool.set_attr("trail", np.zeros(3), env_id=[1]), "broadcast"),
        (lambda pool: pool.render(env_id=[1]), "render_mode='rgb_array'"),
    ],
)
def test_a_call_that_fails_names_the_env_and_the_pool_goes_on(
    call: Callable[..., Any], told: str, pools: Callable[..., Pool]
) -> None:
    pool = pools(Drift, 3)
    pool.reset(seed=1)
    with pytest.raises(EnvCallError, match=f"call failed in env 1.*{told}"):
        call(pool)
    assert pool.step([0, 0, 0]).elapsed_step.tolist() == [1, 1, 1]


def test_an_env_without_a_renderer_says_so(pools: Callable[..., Pool]) -> None:
    pool = pools(Drift, 1, env_kwargs={"render_mode": "rgb_array"})
    pool.reset()
    with pytest.raises(EnvCallError, match="Drift has no renderer"):
        pool.render()


def test_a_compiled_env_is_drawn_as_it_stands(pools: Callable[..., Pool]) -> None:
    pytest.importorskip("pygame")
    pool = pools("CartPole-v1", 2, env_kwargs={"render_mode": "rgb_array"})
    pool.reset(seed=1)
    pool.set_attr("x", [-2.0, 2.0])
    left, right = pool.render()
    assert left.dtype == np.uint8
    assert left.ndim == 3
    assert (left != right).any()


# ---------------------------------------------------------------------- constants and options


def test_constants_may_differ_from_env_to_env(pools: Callable[..., Pool]) -> None:
    pool = pools(Switches, 3, env_kwargs=[{}, {"weights": np.array([0, 0, 1])}, {"weights": [2, 2, 2]}])
    pool.reset(seed=1)
    assert pool.step(np.array([[1, -1, 5]] * 3)).reward.tolist() == [1 - 10 + 500, 5, 2 - 2 + 10]


def test_whole_numbers_will_do_for_a_float_constant(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Drift, 3, env_kwargs=[{"gain": 2}, {"gain": 0.5}, {}])
    assert_same(*(play(pool, 10) for pool in (compiled, plain)))


def test_options_hold_for_one_reset(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Drift, 3, autoreset="same_step")
    for options in ({"origin": 10.0, "spread": 0.5}, None, {"origin": -3}, {}):
        got, expected = (rows_of(pool.reset(options=options, seed=2)) for pool in (compiled, plain))
        assert_same(got, expected)
    got, expected = (rows_of(pool.reset(options={"origin": 10.0}, env_id=[2])) for pool in (compiled, plain))
    assert_same(got, expected)
    assert got["obs"][0, 0] > 5.0
    assert_same(*(play(pool, 20) for pool in (compiled, plain)))


def test_an_option_that_does_not_exist_is_named(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Drift, 2)
    told = []
    for pool in (compiled, plain):
        with pytest.raises(EnvResetError, match=r"does not know .*nonsense") as error:
            pool.reset(seed=1, options={"nonsense": 1.0})
        told.append(str(error.value))
        assert len(pool.reset(seed=1)) == 2
    assert told[0] == told[1]


@pytest.mark.parametrize("given", ["wide", "7", 2**70, None], ids=str)
def test_an_option_that_is_no_number_is_refused_and_leaves_nothing(given: Any, make_pool: Callable[..., Pool]) -> None:
    for pool in both(make_pool, Drift, 2):
        with pytest.raises(EnvResetError, match=r"options\['spread'\]: expected a number that fits float64, got "):
            pool.reset(seed=1, options={"origin": 100.0, "spread": given})
        assert (np.abs(pool.reset(seed=1).obs[:, 0]) <= 1.0).all(), pool


def test_options_do_not_outlive_a_reset_that_failed(make_pool: Callable[..., Pool]) -> None:
    for pool in both(make_pool, Drift, 2):
        with pytest.raises(EnvResetError, match="the drift is broken"):
            pool.reset(seed=1, options={"broken": True, "origin": 100.0})
        assert (np.abs(pool.reset(seed=1).obs[:, 0]) <= 1.0).all(), pool


def test_options_do_not_outlive_a_reset_that_was_interrupted(
    pools: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    pool = pools(Drift, 2)
    with monkeypatch.context() as patch:
        patch.setattr(pool.engine, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.reset(seed=1, options={"origin": 100.0})
    assert (np.abs(pool.reset(seed=1).obs[:, 0]) <= 1.0).all()


def test_an_env_that_is_renewed_has_its_constants_back_though_a_call_comes_before_the_reset(
    make_pool: Callable[..., Pool],
) -> None:
    for pool in both(make_pool, Drift, 2):
        pool.reset(seed=1)
        pool.set_attr("gain", 5.0)
        pool.renew([1])
        pool.get_attr("x")
        pool.reset()
        assert pool.get_attr("gain") == (5.0, 1.0), pool


def test_envs_of_two_kinds_cannot_share_a_loop() -> None:
    with pytest.raises(EnvConstructError, match=r"env 1: .*one kind of env"):
        shoal.make_pool([Drift, Cell], engine="kernel")
    with pytest.raises(EnvConstructError, match="env 1"):
        shoal.make_pool(Switches, 2, engine="kernel", env_kwargs=[{}, {"weights": [1, 2, 3, 4]}])


def test_an_unknown_keyword_is_named_with_its_envs() -> None:
    with pytest.raises(EnvConstructError, match=r"env 1: .*no constant called gravity; it has .*gain"):
        shoal.make_pool(Drift, 2, engine="kernel", env_kwargs=[{}, {"gravity": 2.0}])


# ---------------------------------------------------------------------- who gets the engine


@contextlib.contextmanager
def registered(env_id: str, **changes: Any) -> Iterator[None]:
    """Gymnasium's registration of an id, changed for a while."""
    before = gym.registry[env_id]
    settings: dict[str, Any] = {"entry_point": before.entry_point, "max_episode_steps": before.max_episode_steps}
    gym.registry[env_id] = gym.envs.registration.EnvSpec(env_id, **{**settings, **changes})
    try:
        yield
    finally:
        gym.registry[env_id] = before


def engine_of(*args: Any, **options: Any) -> str:
    with shoal.make_vec(*args, **options) as envs:
        envs.reset(seed=1)
        return envs.stats().engine


def test_an_id_that_can_be_compiled_is() -> None:
    with shoal.make_vec("CartPole-v1", 3) as envs:
        assert (envs.stats().engine, envs.stats().engine_reason) == ("kernel", "the env is compiled")
        assert envs.spec is not None
        assert envs.spec.id == "CartPole-v1"
        assert "CartPole-v1" in repr(envs)


def test_compiled_cartpole_has_the_rows_of_gymnasiums() -> None:
    # Gymnasium's own vector env is the judge.
    theirs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    with shoal.make_vec("CartPole-v1", 3, engine="kernel") as mine:
        np.testing.assert_array_equal(mine.reset(seed=3)[0], theirs.reset(seed=3)[0])
        for turn in range(80):
            actions = np.array([turn % 2, 1, turn % 3 == 0], np.int64)
            for one, other in zip(mine.step(actions)[:4], theirs.step(actions)[:4], strict=True):
                np.testing.assert_array_equal(one, other)
    theirs.close()


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "serial"},
        {"env_kwargs": {"disable_env_checker": True}},
        {"env_kwargs": [{"disable_env_checker": True}]},
        {"wrappers": [gym.wrappers.FlattenObservation]},
    ],
    ids=["another engine", "a keyword that is only Gymnasium's", "such a keyword in a list", "a wrapper"],
)
def test_gymnasiums_env_runs_when_the_compiled_one_would_not_do(options: dict[str, Any]) -> None:
    with shoal.make_vec("CartPole-v1", 1, **options) as envs:
        envs.reset(seed=1)
        assert envs.stats().engine == "serial"
        assert type(envs.call("unwrapped")[0]).__name__ == "CartPoleEnv"


def test_an_overridden_id_means_what_it_was_overridden_with() -> None:
    with registered("CartPole-v1", entry_point=CountingEnv):
        assert engine_of("CartPole-v1", 1) == "serial"


@pytest.mark.parametrize("change", [{"max_episode_steps": 5}, {"kwargs": {"sutton_barto_reward": True}}], ids=str)
def test_an_id_registered_anew_with_other_settings_keeps_them(change: dict[str, Any]) -> None:
    """The class is still Gymnasium's, but its time limit and keywords are now the user's."""
    with registered("CartPole-v1", **change), shoal.make_vec("CartPole-v1", 1) as envs:
        envs.reset(seed=1)
        rows = [envs.step(np.array([turn % 2]))[1:4] for turn in range(5)]
    if "kwargs" in change:
        assert rows[0][0].tolist() == [0.0]
    else:
        assert rows[-1][2].tolist() == [True]


def test_a_window_on_the_screen_needs_gymnasiums_env() -> None:
    """It draws by itself at every step; a compiled env would show nothing."""
    assert own_recipe("CartPole-v1", "auto", 1, {"render_mode": "rgb_array"}, None, None) is not None
    assert own_recipe("CartPole-v1", "auto", 1, {"render_mode": "human"}, None, None) is None


@pytest.mark.parametrize("engine", ["auto", "kernel", "serial", "thread", "process"])
def test_an_env_of_shoal_alone_runs_on_every_engine(engine: str, make_pool: Callable[..., Pool]) -> None:
    pool = make_pool("Catch-v0", 2, engine=engine, num_workers=None if engine != "process" else 1)
    reference = make_pool("Catch-v0", 2, engine="serial")
    assert pool.stats().engine == {"auto": "kernel"}.get(engine, engine)
    assert_same(play(pool, 12), play(reference, 12))


@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_a_kind_can_be_wrapped_where_it_runs_as_plain_python(engine: str) -> None:
    with shoal.make_vec("Catch-v0", 1, engine=engine, wrappers=[gym.wrappers.FlattenObservation]) as envs:
        assert envs.reset(seed=1)[0].shape == (1, 50)
        assert envs.stats().engine == "serial"


def test_a_wrapped_kind_keeps_its_time_limit() -> None:
    with shoal.make_vec(Cell, 1, engine="serial", wrappers=[lambda env: env]) as envs:
        envs.reset(seed=1)
        truncated = [bool(envs.step(np.float32([[0.0, 0.01 * (-1) ** turn]]))[3][0]) for turn in range(12)]
    assert truncated == [False] * 11 + [True]


def test_the_kernel_engine_says_that_it_runs_no_wrappers() -> None:
    with pytest.raises(ArgumentError, match=r"(?i)wrap"):
        shoal.make_pool(Cell, 2, engine="kernel", wrappers=[gym.wrappers.OrderEnforcing])


def test_what_is_no_kernel_env_cannot_run_compiled() -> None:
    with pytest.raises(ArgumentError, match=r"KernelEnv.* CountingEnv"):
        shoal.make_pool(CountingEnv, 2, engine="kernel")


def test_the_limit_given_here_comes_before_that_of_the_kind(pools: Callable[..., Pool]) -> None:
    turns = [np.float32([[0.0, (-1.0) ** turn]]) for turn in range(12)]
    for limit, length in ((None, 12), (3, 3)):
        pool = pools(Cell, 1, max_episode_steps=limit)
        pool.reset(seed=1)
        pool.set_attr("cell", 5)
        cuts = [bool(pool.step(action).truncated[0]) for action in turns[:length]]
        assert cuts == [False] * (length - 1) + [True]


def test_stats_count_what_was_done(make_pool: Callable[..., Pool]) -> None:
    for autoreset in MODES:
        compiled, plain = both(make_pool, Drift, 5, autoreset=autoreset)
        for pool in (compiled, plain):
            play(pool, 40)
        mine, reference = compiled.stats(), plain.stats()
        for name in ("episodes", "steps", "resets", "batches", "faults", "num_envs"):
            assert getattr(mine, name) == getattr(reference, name), (autoreset, name)
        assert mine.episodes > 10


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("num_envs", [3, 600])
def test_a_pool_leaves_nothing_behind(num_envs: int) -> None:
    with no_leftovers():
        pool = shoal.make_pool(Drift, num_envs, engine="kernel", num_workers=2)
        pool.reset(seed=1)
        pool.step(np.zeros(num_envs, np.int64))
        pool.send(np.zeros(num_envs, np.int64))
        pool.close()
        pool.close()
    for refused in (pool.reset, pool.recv, partial(pool.step, [0] * num_envs), pool.snapshot):
        with pytest.raises(ClosedPool):
            refused()
    assert pool.stats().episodes >= 0


def test_a_pool_that_cannot_be_built_leaves_nothing_behind() -> None:
    with no_leftovers(), pytest.raises(EnvConstructError):
        shoal.make_pool(Drift, 600, engine="kernel", num_workers=2, env_kwargs={"nonsense": 1})


def test_batches_outlive_their_pool(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Drift, 3, engine="kernel", copy=False)
    batch = pool.reset(seed=1)
    kept = batch.obs.copy()
    pool.close()
    np.testing.assert_array_equal(batch.obs, kept)


# ---------------------------------------------------------------------- without numba


def run_without_numba(text: str, fake: str = "sys.modules['numba'] = None") -> str:
    """What a program prints in which numba cannot be imported; warnings are printed, too."""
    support = Path(kernel_kinds.__file__).parent
    program = f"import sys, warnings\nsys.path.insert(0, {str(support)!r})\n{fake}\n" + textwrap.dedent(text)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_without_numba_kernel_envs_run_as_plain_python(make_pool: Callable[..., Pool]) -> None:
    text = """
        import shoal
        from kernel_kinds import Cell, play
        for engine in ("auto", "kernel"):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pool = shoal.make_pool(Cell, 2, engine=engine)
            print(pool.stats().engine, len(caught), caught[0].message, pool.stats().engine_reason, sep="|")
            print([row["obs"].tolist() for row in play(pool, 20)])
            pool.close()
    """
    lines = run_without_numba(text).splitlines()
    expected = str([row["obs"].tolist() for row in play(make_pool(Cell, 2, engine="kernel"), 20)])
    for told, rows in (lines[:2], lines[2:]):
        assert told.startswith("serial|1|numba is not installed, so Cell runs as plain Python")
        assert told.endswith("numba is not installed")
        assert rows == expected


@pytest.mark.slow
def test_without_numba_gymnasiums_envs_run_without_a_word() -> None:
    text = """
        warnings.simplefilter("error")
        import shoal
        with shoal.make_vec("CartPole-v1", 1) as envs:
            envs.reset(seed=1)
            print(envs.stats().engine, type(envs.call("unwrapped")[0]).__name__)
        warnings.simplefilter("default")
        with shoal.make_vec("CartPole-v1", 1, engine="kernel") as envs:
            print(envs.stats().engine, type(envs.call("unwrapped")[0]).__name__)
    """
    assert run_without_numba(text).splitlines() == ["serial CartPoleEnv", "serial PlainKernelEnv"]


def test_a_numba_that_cannot_be_imported_counts_as_none(tmp_path: Path) -> None:
    """As after an update of numpy: numba raises ImportError when it meets a version that it does not know."""
    (tmp_path / "numba").mkdir()
    (tmp_path / "numba" / "__init__.py").write_text("raise ImportError('Numba needs NumPy 1.26 or less. Got 2.4.')")
    text = """
        import shoal
        with shoal.make_vec("CartPole-v1", 1) as envs:
            print(envs.stats().engine)
        from kernel_kinds import Cell
        with shoal.make_pool(Cell, 1) as pool:
            print(pool.stats().engine)
    """
    assert run_without_numba(text, f"sys.path.insert(0, {str(tmp_path)!r})").split() == ["serial", "serial"]


# ---------------------------------------------------------------------- what compiles only in odd corners


class Size(KernelEnv):
    """Its fields have names that numpy's records use for themselves."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = spaces.Discrete(2)
    state = {"size": np.float64, "max": np.float64}
    constants = {"shape": 3}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.size = 5.0
        env.max = 7.0
        obs[0] = env.size
        obs[1] = env.max
        obs[2] = env.shape

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.size += 1.0
        obs[0] = env.size
        obs[1] = env.max
        obs[2] = env.shape
        return 0.0, False


def test_fields_may_have_names_that_numpys_records_have_too(make_pool: Callable[..., Pool]) -> None:
    """Or they are refused: what must not be is that the interpreted env reads numpy's attribute instead."""
    try:
        compiled, plain = both(make_pool, Size, 1)
    except (SpecError, EnvConstructError) as error:
        assert "size" in str(error)  # noqa: PT017 - either is fine
        return
    for pool in (compiled, plain):
        assert pool.reset(seed=1).obs.tolist() == [[5.0, 7.0, 3.0]], pool
        assert pool.step([0]).obs.tolist() == [[6.0, 7.0, 3.0]], pool


class Narrow(KernelEnv):
    """Single precision in the state and in the action, which is widened by hand: numpy does not, and numba does."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    state = {"f": np.float32, "n": np.int32}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.f = rng.random()
        env.n = 2_000_000_000
        obs[0] = env.f
        obs[1] = 0.0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        push = np.float64(action[0])
        env.f = env.f * 0.1 + push * 0.3
        obs[0] = env.f
        obs[1] = env.n * 2
        return env.f * 0.1 + push / 3.0, False


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_narrow_numbers_are_computed_alike_compiled_and_interpreted(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Narrow, 5)
    assert_same(*(play(pool, 20) for pool in (compiled, plain)))


def collatz(n: int) -> int:
    """How many steps it takes to one."""
    if n == 1:
        return 0
    return 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)


class Recursive(KernelEnv):
    """Calls a function that calls itself, which no compiler can write out in place."""

    observation_space = spaces.Box(0, 1000, (1,), np.int64)
    action_space = spaces.Discrete(30, start=1)
    state = {"n": np.int64}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.n = 27
        obs[0] = collatz(env.n)

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.n = action
        obs[0] = collatz(env.n)
        return float(obs[0]), False


def test_functions_may_call_themselves(make_pool: Callable[..., Pool]) -> None:
    compiled, plain = both(make_pool, Recursive, 3)
    for pool in (compiled, plain):
        assert pool.reset().obs.tolist() == [[111]] * 3
        assert pool.step([1, 6, 9]).obs.tolist() == [[0], [8], [19]]


class Still(shoal.KernelEnv):
    """Takes nothing, and counts to three."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Box(-1.0, 1.0, (0,), np.float32)
    state = {"t": np.int64}

    def reset(env: Any, rng: Any, obs: Any) -> None:
        env.t = obs[0] = 0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        env.t += 1
        obs[0] = env.t
        return 1.0, env.t == 3


def test_an_env_may_take_actions_without_numbers(make_pool: Callable[..., Pool]) -> None:
    pool = make_pool(Still, 3, engine="kernel")
    pool.reset(seed=1)
    assert [pool.step(np.zeros((3, 0), np.float32)).terminated.tolist() for _ in range(3)][-1] == [True] * 3
