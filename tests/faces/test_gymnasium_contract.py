"""A shoal is a true ``gymnasium.vector.VectorEnv``: what wrappers, trainers and Gymnasium's own text rely on."""

from __future__ import annotations

import functools
import gc
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as wrappers

import shoal
from shoal import testing
from shoal.errors import ActionError, ArgumentError, ClosedPool, EnvCallError, EnvStepError, NotReset, StateError
from shoal.testing import CountingEnv, DictTupleEnv, FaultEnv, SampleEnv, ScriptedEnv, WrappedBufferEnv, read_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.faces.gymnasium import ShoalVectorEnv


@pytest.fixture
def make(engine: str) -> Iterator[Callable[..., ShoalVectorEnv]]:
    """Makes vector envs on one engine after the other and closes them in the end."""
    made: list[ShoalVectorEnv] = []

    def make_one(env: Any = CountingEnv, num_envs: int | None = 3, **options: Any) -> ShoalVectorEnv:
        options.setdefault("num_workers", None if engine == "serial" else 2)
        made.append(shoal.make_vec(env, num_envs, engine=engine, **options))
        return made[-1]

    yield make_one
    for envs in made:
        envs.close()
    # pytest holds on to this function, and with it to the pools, beyond the check for leaks.
    made.clear()


def zeros(envs: VectorEnv[Any, Any, Any]) -> Any:
    """An action that does nothing, for each env."""
    return np.zeros(envs.action_space.shape, envs.action_space.dtype)


def rows_of(obs: Any) -> list[testing.Row]:
    return [read_row(row) for row in obs]


# ---------------------------------------------------------------------- what it is


def test_it_is_a_vector_env_with_all_attributes(make: Any) -> None:
    envs = make("CartPole-v1")
    assert isinstance(envs, VectorEnv)
    assert envs.unwrapped is envs
    assert envs.num_envs == 3
    assert envs.spec.id == "CartPole-v1"
    assert envs.render_mode is None
    assert envs.closed is False
    assert envs.observation_space.shape == (3, 4)
    assert isinstance(envs.action_space, spaces.MultiDiscrete)


def test_the_mode_is_declared_without_touching_the_env_class() -> None:
    with shoal.make_vec(CountingEnv, 2, engine="serial", autoreset="same_step") as envs:
        assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
        assert envs.metadata["render_fps"] == CountingEnv.metadata["render_fps"]
    assert "autoreset_mode" not in CountingEnv.metadata


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_mode_may_be_a_name_or_gymnasiums_own(mode: AutoresetMode) -> None:
    for value in (mode, mode.value, mode.name, mode.name.lower()):
        with shoal.make_vec(CountingEnv, 2, engine="serial", autoreset=value) as envs:
            assert envs.autoreset_mode is mode


def test_an_env_that_is_not_registered_has_no_spec(make: Any) -> None:
    assert make(CountingEnv).spec is None


def test_repr_says_what_runs_where(make: Any, engine: str) -> None:
    envs = make("CartPole-v1", autoreset="same_step")
    assert "CartPole-v1, 3 envs" in repr(envs)
    assert engine in repr(envs)
    assert "same_step, open" in repr(envs)
    envs.close()
    assert "same_step, closed" in repr(envs)


def test_arrays_have_gymnasiums_types(make: Any) -> None:
    envs = make(functools.partial(CountingEnv, dtype=np.float32))
    obs, infos = envs.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((3, 8), np.float32)
    obs, rewards, terminated, truncated, infos = envs.step(zeros(envs))
    assert (obs.shape, obs.dtype) == ((3, 8), np.float32)
    assert (rewards.shape, rewards.dtype) == ((3,), np.float64)
    for flags in (terminated, truncated, infos["first"]):
        assert (flags.shape, flags.dtype) == ((3,), np.bool_)
    for counts in (infos["env_id"], infos["elapsed_step"]):
        assert (counts.shape, counts.dtype) == ((3,), np.int32)


def test_observations_are_in_the_observation_space(make: Any) -> None:
    envs = make(DictTupleEnv)
    obs, _ = envs.reset(seed=0)
    assert obs in envs.observation_space
    obs, *_ = envs.step(envs.action_space.sample())
    assert obs in envs.observation_space


# ---------------------------------------------------------------------- closing


def test_close_may_be_called_twice_and_ends_everything(make: Any) -> None:
    envs = make()
    envs.reset(seed=0)
    envs.close()
    envs.close()
    assert envs.closed
    for call in (envs.reset, lambda: envs.step(np.zeros(3, int)), lambda: envs.call("render"), envs.recv):
        with pytest.raises(ClosedPool, match="is closed"):
            call()


def test_leaving_a_with_block_closes(engine: str) -> None:
    with shoal.make_vec(CountingEnv, 2, engine=engine) as envs:
        envs.reset(seed=0)
    assert envs.closed
    # The memory of a pool lives as long as somebody can look at it.
    del envs


def test_a_closed_pool_holds_no_file_even_while_it_is_referenced(engine: str) -> None:
    before = testing.leftovers()
    envs = shoal.make_vec(CountingEnv, 2, engine=engine)
    envs.reset(seed=0)
    envs.close()
    gc.collect()
    assert not testing.leftovers().since(before).fds, repr(envs)


def test_a_forgotten_pool_cleans_up_after_itself(engine: str) -> None:
    envs = shoal.make_vec(CountingEnv, 2, engine=engine)
    envs.reset(seed=0)
    del envs  # the check for leaks does the rest


# ---------------------------------------------------------------------- calls and attributes


def test_calls_reach_every_env_in_order(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs=[{"tag": 5}, {"tag": 6}, {"tag": 7}])
    assert envs.get_attr("tag") == (5, 6, 7)
    envs.set_attr("tag", 1)
    assert envs.call("tag") == (1, 1, 1)
    envs.set_attr("tag", (2, 3, 4))
    assert envs.get_attr("tag") == (2, 3, 4)


def test_a_call_takes_arguments_and_goes_through_wrappers(make: Any) -> None:
    envs = make("CartPole-v1")
    assert envs.call("get_wrapper_attr", "gravity") == (9.8, 9.8, 9.8)
    assert envs.call("has_wrapper_attr", "no such thing") == (False, False, False)
    envs.set_attr("gravity", [1.0, 2.0, 3.0])
    assert envs.get_attr("gravity") == (1.0, 2.0, 3.0)


def test_a_failing_call_names_the_env_and_leaves_the_pool_usable(make: Any) -> None:
    envs = make()
    envs.reset(seed=0)
    with pytest.raises(EnvCallError, match=r"env 0.*no_such_name"):
        envs.get_attr("no_such_name")
    envs.step(zeros(envs))
    assert envs.get_attr("total_steps") == (1, 1, 1)


def test_set_attr_wants_one_value_per_env(make: Any) -> None:
    with pytest.raises(ValueError, match=r"expected 3 values, one per env, got 2"):
        make().set_attr("tag", [1, 2])


def test_a_masked_reset_beside_envs_that_are_under_way_is_refused(make: Any) -> None:
    envs = make(CountingEnv, autoreset="disabled")
    envs.reset(seed=0)
    envs.send(zeros(envs)[:1], [1])
    with pytest.raises(shoal.errors.StateError, match=r"envs \[1\] are under way.*async_reset"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.reset(options={"reset_mask": np.array([True, True, False])})
    envs.send(zeros(envs)[:1], [1])
    assert envs.recv()[4]["env_id"].tolist() == [1]


def test_frames_come_from_the_chosen_envs(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs={"render_mode": "rgb_array", "episode_length": 9}, autoreset="disabled")
    assert envs.render_mode == "rgb_array"
    envs.reset(seed=0)
    envs.step(zeros(envs))
    envs.step(zeros(envs))
    envs.reset(options={"reset_mask": np.array([False, True, False])})
    frames = envs.render()
    assert [frame.shape for frame in frames] == [(4, 4, 3)] * 3
    assert [int(frame[0, 0, 0]) for frame in frames] == [2, 0, 2]
    assert [int(frame[0, 0, 0]) for frame in envs.render([2, 1])] == [2, 0]


# ---------------------------------------------------------------------- who owns what


def leaves_of(value: Any) -> list[np.ndarray[Any, Any]]:
    """All arrays in a nested result, also those inside of object arrays."""
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves_of(item)]
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in leaves_of(item)]
    if not isinstance(value, np.ndarray):
        return []
    return leaves_of(value.tolist()) if value.dtype == object else [value]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
@pytest.mark.parametrize(
    "env", [functools.partial(WrappedBufferEnv, infos=True), DictTupleEnv], ids=["reused buffer", "nested"]
)
def test_what_was_returned_never_changes_and_is_writable(make: Any, env: Any, mode: str) -> None:
    envs = make(env, autoreset=mode)
    results = [envs.reset(seed=0)]
    results += [envs.step(envs.action_space.sample()) for _ in range(12)]
    arrays = leaves_of(results)
    copies = [array.copy() for array in arrays]
    for _ in range(12):
        envs.step(envs.action_space.sample())
    envs.reset()
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert array.flags.writeable


def test_writing_to_results_does_not_reach_the_pool(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs={"episode_length": 5}, autoreset="disabled")
    obs, infos = envs.reset(seed=0)
    obs[:] = -7
    infos["elapsed_step"][:] = 99
    infos["env_id"][:] = 99
    for result in envs.step(zeros(envs))[:4]:
        result[:] = True
    obs, infos = envs.reset(options={"reset_mask": np.array([True, False, False])})
    assert [row.step for row in rows_of(obs)] == [0, 1, 1]
    assert infos["elapsed_step"].tolist() == [0, 1, 1]
    assert infos["env_id"].tolist() == [0, 1, 2]


class ReusedObjectEnv(SampleEnv):
    """Observes a stacked sequence that is always the same array, filled with the step number."""

    def __init__(self) -> None:
        super().__init__(spaces.Sequence(spaces.Box(-1, 9, (2,)), stack=True), episode_length=4)
        self._buffer = np.zeros((3, 2), np.float32)

    def _observe(self, action: Any) -> Any:
        self._buffer[:] = self._step
        return self._buffer


def test_objects_an_env_reuses_do_not_change_in_results(make: Any) -> None:
    envs = make(ReusedObjectEnv, 2)
    first, _ = envs.reset(seed=0)
    envs.step(zeros(envs))
    assert [float(value.max()) for value in first] == [0.0, 0.0]


def test_last_objects_of_an_episode_are_not_those_of_the_next(make: Any) -> None:
    envs = make(ReusedObjectEnv, 2, autoreset="same_step")
    envs.reset(seed=0)
    infos: dict[str, Any] = {}
    for _ in range(4):
        *_, infos = envs.step(zeros(envs))
    assert [float(value.max()) for value in infos["final_obs"]] == [4.0, 4.0]


class ReusedInfoEnv(SampleEnv):
    """Has one info dict and updates it in every call, resets included."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(3), episode_length=3)
        self._facts: dict[str, Any] = {"at": np.zeros(2)}

    def _info(self) -> dict[str, Any]:
        self._facts["t"] = self._step
        self._facts["at"][:] = self._step
        return self._facts


def test_last_info_of_an_episode_is_not_that_of_the_next(make: Any) -> None:
    envs = make(ReusedInfoEnv, 2, autoreset="same_step")
    envs.reset(seed=0)
    infos: dict[str, Any] = {}
    for _ in range(3):
        *_, infos = envs.step(zeros(envs))
    assert infos["t"].tolist() == [0, 0]
    assert infos["final_info"]["t"].tolist() == [3, 3]
    assert infos["final_info"]["at"].tolist() == [[3, 3], [3, 3]]


BOX_COUNTING = functools.partial(CountingEnv, episode_length=9, action_space=spaces.Box(0, 9, (2,), np.float64))


def test_actions_may_be_overwritten_once_they_are_sent(make: Any) -> None:
    envs = make(BOX_COUNTING)
    envs.reset(seed=0)
    actions = np.ones((3, 2))
    envs.send(actions)
    actions[:] = 2
    envs.send(actions)  # waits behind the first
    actions[:] = 9
    for expected in (2, 4):
        obs, *_ = envs.recv()
        assert [row.action for row in rows_of(obs)] == [expected] * 3


def test_actions_that_are_objects_may_be_changed_once_they_are_sent(make: Any) -> None:
    space = spaces.Sequence(spaces.Box(0, 9, (2,), np.float64), stack=True)
    envs = make(functools.partial(CountingEnv, episode_length=9, action_space=space))
    envs.reset(seed=0)
    actions = tuple(np.ones((1, 2)) for _ in range(3))
    envs.send(actions)
    for action in actions:
        action[:] = 9
    obs, *_ = envs.recv()
    assert [row.action for row in rows_of(obs)] == [2] * 3


class GreedyEnv(CountingEnv):
    """Writes to the action it is given."""

    def step(self, action: Any) -> Any:
        result = super().step(action)
        action[:] = 7
        return result


def test_an_env_cannot_change_the_callers_actions(make: Any) -> None:
    envs = make(functools.partial(GreedyEnv, action_space=spaces.Box(0, 9, (2,), np.float64)))
    envs.reset(seed=0)
    actions = np.ones((3, 2))
    envs.step(actions)
    assert (actions == 1).all()


def test_views_hold_for_one_further_call(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs={"episode_length": 50}, copy=False)
    before, _ = envs.reset(seed=0)
    for step in range(1, 20):
        obs, *_ = envs.step(zeros(envs))
        assert [row.step for row in rows_of(before)] == [step - 1] * 3
        assert [row.step for row in rows_of(obs)] == [step] * 3
        before = obs


def test_views_are_views_and_the_rest_is_not(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs={"episode_length": 50}, copy=False)
    envs.reset(seed=0)
    results = [envs.step(zeros(envs)) for _ in range(8)]
    assert any(np.shares_memory(results[0][0], later[0]) for later in results[1:])
    for place in (1, 2, 3):
        assert not any(np.shares_memory(results[0][place], later[place]) for later in results[1:])


# ---------------------------------------------------------------------- reset and its mask


def test_the_pools_own_seed_serves_the_first_reset_only(make: Any) -> None:
    envs = make(CountingEnv, seed=40)
    own, _ = envs.reset()
    later, _ = envs.reset()
    given, _ = envs.reset(seed=40)
    np.testing.assert_array_equal(own, given)
    assert [row.episode for row in rows_of(later)] == [1, 1, 1]


def test_the_pools_own_seed_gives_way_to_one_that_is_passed(make: Any) -> None:
    envs = make(CountingEnv, seed=40)
    given, _ = envs.reset(seed=[1, 2, 3])
    np.testing.assert_array_equal(given, envs.reset(seed=[1, 2, 3])[0])
    assert envs.np_random_seed == (1, 2, 3)


def test_options_are_left_as_they_were() -> None:
    with shoal.make_vec(CountingEnv, 3, engine="serial", autoreset="disabled") as envs:
        envs.reset(seed=0)
        mask = np.array([True, False, True])
        options = {"reset_mask": mask, "level": 1}
        envs.reset(options=options)
    assert options.keys() == {"reset_mask", "level"}
    assert options["reset_mask"] is mask


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.array([False, False, False]), "nothing to reset"),
        (np.array([True, False]), r"shape \(3,\)"),
        (np.array([1, 0, 1]), "bool array"),
        ([True, False, True], "bool array"),
        (None, "bool array"),
    ],
    ids=["none", "short", "ints", "list", "missing"],
)
def test_a_mask_that_makes_no_sense_is_refused(mask: Any, message: str) -> None:
    with shoal.make_vec(CountingEnv, 3, engine="serial", autoreset="disabled") as envs:
        envs.reset(seed=0)
        with pytest.raises(ArgumentError, match=message) as caught:
            envs.reset(options={"reset_mask": mask})
        is_mask = isinstance(mask, np.ndarray) and mask.dtype == np.bool_
        assert isinstance(caught.value, TypeError) is not is_mask, "as in Gymnasium"


def test_a_mask_cannot_leave_out_envs_that_were_never_reset() -> None:
    with shoal.make_vec(CountingEnv, 3, engine="serial") as envs:
        with pytest.raises(NotReset, match=r"reset_mask.*envs \[1, 2\] were never reset: reset all"):
            envs.reset(options={"reset_mask": np.array([True, False, False])})
        assert envs.pool.never_reset == {0, 1, 2}
        envs.reset(options={"reset_mask": np.ones(3, np.bool_)})
        assert not envs.pool.never_reset


@pytest.mark.parametrize("seed", [5, np.int64(5), np.array(5), [3, 4, 7], np.array([3, 4, 7])], ids=repr)
def test_seeds_of_every_kind_go_with_a_mask(seed: Any) -> None:
    with shoal.make_vec(CountingEnv, 3, engine="serial") as envs:
        envs.reset(seed=0)
        envs.reset(seed=seed, options={"reset_mask": np.array([False, False, True])})
        assert envs.np_random_seed == (0, 1, 7)


@pytest.mark.parametrize("seed", [[1], [1, 2, 3, 4], -1, "1", 1.5, [-1, 2, 3], {1, 2, 3}], ids=repr)
def test_a_seed_that_makes_no_sense_is_refused_before_anything_moves(seed: Any) -> None:
    with shoal.make_vec(CountingEnv, 3, engine="serial") as envs:
        envs.reset(seed=0)
        for options in (None, {"reset_mask": np.array([True, False, False])}):
            with pytest.raises(ArgumentError, match="seed"):
                envs.reset(seed=seed, options=options)
        obs, *_ = envs.step(zeros(envs))
        assert [row.step for row in rows_of(obs)] == [1, 1, 1]


def test_a_ragged_seed_beside_a_mask_is_refused_like_any_other() -> None:
    with shoal.make_vec(CountingEnv, 3, engine="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(ArgumentError, match=r"seed: expected an int, got \[1\]"):
            envs.reset(seed=[[1], [2, 3], 4], options={"reset_mask": np.array([True, False, False])})


def test_an_env_must_be_reset_before_its_first_step(make: Any) -> None:
    envs = make(autoreset="disabled")
    with pytest.raises(NotReset, match=r"\[0, 1, 2\] were never reset"):
        envs.step(zeros(envs))
    envs.async_reset(env_id=[1])
    envs.recv()
    with pytest.raises(NotReset, match=r"\[0, 2\] were never reset"):
        envs.step(zeros(envs))
    envs.reset(options={"reset_mask": np.array([True, False, True])})
    envs.step(zeros(envs))


def test_without_autoreset_a_finished_env_must_be_reset(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs=[{"episode_length": n} for n in (1, 2, 9)], autoreset="disabled")
    envs.reset(seed=0)
    envs.step(zeros(envs))
    with pytest.raises(NotReset, match=r"\[0\] have finished their episodes"):
        envs.step(zeros(envs))
    envs.reset(options={"reset_mask": np.array([True, False, False])})
    *_, infos = envs.step(zeros(envs))
    assert infos["elapsed_step"].tolist() == [1, 2, 2]


def test_step_while_rows_are_under_way_is_refused(make: Any) -> None:
    envs = make()
    envs.reset(seed=0)
    envs.send(zeros(envs))
    with pytest.raises(StateError, match="under way"):
        envs.step(zeros(envs))
    envs.recv()
    envs.step(zeros(envs))


# ---------------------------------------------------------------------- bad actions, bad envs


@pytest.mark.parametrize(
    "actions",
    [np.zeros(2, int), np.zeros((3, 1), int), np.zeros(3), np.full(3, 5), np.array([0, 0, -1]), ["a"] * 3, None, 0],
    ids=["few", "column", "floats", "high", "low", "text", "none", "scalar"],
)
def test_bad_actions_are_refused_before_anything_moves(actions: Any) -> None:
    with shoal.make_vec(CountingEnv, 3, engine="serial") as envs:
        envs.reset(seed=0)
        with pytest.raises(ActionError, match="action"):
            envs.step(actions)
        assert envs.get_attr("total_steps") == (0, 0, 0)
        envs.step(zeros(envs))


def test_an_env_that_breaks_its_contract_is_named(make: Any) -> None:
    factories = [CountingEnv, functools.partial(FaultEnv, "bad_shape", at=2), CountingEnv]
    envs = make(factories, None)
    envs.reset(seed=0)
    envs.step(zeros(envs))
    with pytest.raises(EnvStepError, match=r"env 1.*observation: expected shape \(8,\)") as caught:
        envs.step(zeros(envs))
    assert caught.value.env_id == 1


# ---------------------------------------------------------------------- infos


def test_infos_always_say_whose_rows_they_are(make: Any) -> None:
    envs = make(CountingEnv, 4, batch_size=2)
    envs.async_reset(seed=0)
    seen: list[int] = []
    # Every env has its turn, but on a busy machine a thread may take its time to get going.
    for turn in range(100_000):
        obs, rewards, *_, infos = envs.recv()
        assert len(obs) == len(rewards) == len(infos["env_id"]) == len(infos["first"]) == 2
        seen += infos["env_id"].tolist()
        envs.send(np.zeros(2, int), infos["env_id"])
        if turn >= 9 and len(set(seen)) == 4:
            break
    assert set(seen) == {0, 1, 2, 3}


def test_objects_in_infos_keep_their_shape(make: Any) -> None:
    pairs = np.empty(2, object)
    pairs[:] = [(1, 2), (3, 4)]
    script = [(0.0, False, False, {"pairs": pairs, "names": ["a", "b"], "empty": [], "both": (1, "x")})]
    envs = make(functools.partial(ScriptedEnv, script), 2)
    envs.reset(seed=0)
    *_, infos = envs.step(zeros(envs))
    assert infos["pairs"].shape == (2, 2)
    assert infos["pairs"].tolist() == [[(1, 2), (3, 4)]] * 2
    assert infos["names"].tolist() == [["a", "b"]] * 2
    assert infos["empty"].tolist() == [[]] * 2
    assert infos["both"].tolist() == [(1, "x")] * 2


# ---------------------------------------------------------------------- episode ends and time limits

LENGTHS = [{"episode_length": n, "ending": "terminated"} for n in (2, 3, 9)]


@pytest.mark.parametrize(
    ("mode", "elapsed", "first"),
    [
        ("next_step", [[1, 1, 1], [2, 2, 2], [0, 3, 3], [1, 0, 4]], [[0, 0, 0], [0, 0, 0], [1, 0, 0], [0, 1, 0]]),
        ("same_step", [[1, 1, 1], [2, 2, 2], [1, 3, 3], [2, 1, 4]], [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]),
    ],
)
def test_elapsed_step_and_first_tell_boundaries(make: Any, mode: str, elapsed: Any, first: Any) -> None:
    envs = make(CountingEnv, env_kwargs=LENGTHS, autoreset=mode)
    _, infos = envs.reset(seed=0)
    assert infos["elapsed_step"].tolist() == [0, 0, 0]
    assert infos["first"].all()
    results = [envs.step(zeros(envs))[-1] for _ in elapsed]
    assert [infos["elapsed_step"].tolist() for infos in results] == elapsed
    assert [infos["first"].astype(int).tolist() for infos in results] == first


def test_elapsed_step_and_first_without_autoreset(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs=LENGTHS, autoreset="disabled")
    envs.reset(seed=0)
    envs.step(zeros(envs))
    *_, infos = envs.step(zeros(envs))
    assert infos["elapsed_step"].tolist() == [2, 2, 2]
    assert not infos["first"].any()
    _, infos = envs.reset(options={"reset_mask": np.array([True, False, False])})
    assert infos["elapsed_step"].tolist() == [0, 2, 2]
    assert infos["first"].tolist() == [True, False, False]


@pytest.mark.parametrize(
    "source", ["CartPole-v1", functools.partial(CountingEnv, episode_length=50)], ids=["id", "callable"]
)
@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_time_limit_truncates_and_no_more(make: Any, source: Any, mode: str) -> None:
    envs = make(source, max_episode_steps=4, autoreset=mode)
    envs.reset(seed=0)
    truncated_N = []
    for step in range(12):
        _, _, terminated, truncated, infos = envs.step(np.full(3, step % 2))
        assert not terminated.any()
        truncated_N.append(bool(truncated.all()))
        assert truncated.all() == truncated.any()
        assert (infos["elapsed_step"][truncated] == 4).all()
    period = 5 if mode == "next_step" else 4
    assert truncated_N == [step % period == 3 for step in range(12)]


@pytest.mark.parametrize("ending", ["terminated", "truncated", "both"])
def test_an_end_on_the_limit_step_keeps_its_own_flags(make: Any, ending: str) -> None:
    envs = make(CountingEnv, env_kwargs={"episode_length": 4, "ending": ending}, max_episode_steps=4)
    envs.reset(seed=0)
    for _ in range(4):
        _, _, terminated, truncated, _ = envs.step(zeros(envs))
    assert truncated.all()
    assert terminated.all() == (ending != "truncated")


def test_a_registered_time_limit_holds_unless_replaced(make: Any) -> None:
    envs = make("Pendulum-v1", 1, max_episode_steps=3)
    assert envs.spec.max_episode_steps == 3
    envs = make("Pendulum-v1", 1)
    assert envs.spec.max_episode_steps == 200


def test_gymnasiums_make_vec_makes_a_pool_of_an_id_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    gym.register(
        "shoal/Counting-v0",
        vector_entry_point=functools.partial(shoal.make_vec, CountingEnv),
        kwargs={"env_kwargs": {"episode_length": 9}, "engine": "serial"},
        max_episode_steps=3,
    )
    envs = gym.make_vec("shoal/Counting-v0", num_envs=2, autoreset="same_step")
    assert isinstance(envs, shoal.ShoalVectorEnv)
    assert envs.spec is not None
    assert envs.spec.id == "shoal/Counting-v0"
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert envs.get_attr("episode_length") == (9, 9)
    envs.reset(seed=1)
    ends = [envs.step(np.zeros(2, np.int64))[3].tolist() for _ in range(3)]
    assert ends == [[False, False], [False, False], [True, True]]
    envs.close()


def test_the_limit_counts_again_after_a_masked_reset(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs={"episode_length": 50}, max_episode_steps=3, autoreset="disabled")
    envs.reset(seed=0)
    envs.step(zeros(envs))
    envs.step(zeros(envs))
    envs.reset(options={"reset_mask": np.array([True, False, False])})
    *_, truncated, infos = envs.step(zeros(envs))
    assert truncated.tolist() == [False, True, True]
    assert infos["elapsed_step"].tolist() == [1, 3, 3]


@pytest.mark.parametrize("mode", ["next_step", "disabled"])
def test_final_keys_belong_to_same_step_alone(make: Any, mode: str) -> None:
    envs = make(CountingEnv, env_kwargs={"episode_length": 1}, autoreset=mode)
    envs.reset(seed=0)
    *_, infos = envs.step(zeros(envs))
    assert infos.keys() == {"env_id", "elapsed_step", "first"}


def test_same_step_has_the_last_observation_of_those_that_ended(make: Any) -> None:
    envs = make(CountingEnv, env_kwargs=LENGTHS, autoreset="same_step")
    envs.reset(seed=0)
    envs.step(zeros(envs))
    obs, rewards, terminated, _, infos = envs.step(zeros(envs))
    assert terminated.tolist() == infos["_final_obs"].tolist() == [True, False, False]
    assert infos["_final_info"].tolist() == [True, False, False]
    assert infos["final_obs"][1] is None
    assert (read_row(infos["final_obs"][0]).step, read_row(obs[0]).step) == (2, 0)
    assert rewards.tolist() == [2, 2, 2]


# ---------------------------------------------------------------------- wrappers on top


def test_episode_statistics_count_right_through_a_mask(make: Any) -> None:
    envs = wrappers.RecordEpisodeStatistics(
        make(CountingEnv, 2, env_kwargs={"episode_length": 50}, autoreset="disabled")
    )
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(zeros(envs))
    envs.reset(options={"reset_mask": np.array([True, False])})
    assert envs.episode_lengths.tolist() == [0, 5]
    assert envs.episode_returns.tolist() == [0, 15]


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_episode_statistics_agree_with_elapsed_step(make: Any, mode: str) -> None:
    envs = wrappers.RecordEpisodeStatistics(make(autoreset=mode))
    envs.reset(seed=0)
    ended = 0
    for _ in range(40):
        _, _, terminated, truncated, infos = envs.step(zeros(envs))
        over = terminated | truncated
        if over.any():
            np.testing.assert_array_equal(infos["episode"]["l"][over], infos["elapsed_step"][over])
        ended += int(over.sum())
    assert envs.episode_count == ended > 10


def test_infos_become_a_list(make: Any) -> None:
    envs = wrappers.DictInfoToList(make(CountingEnv, env_kwargs={"infos": True, "episode_length": 2}))
    _, infos = envs.reset(seed=0)
    assert [info["env_id"] for info in infos] == [0, 1, 2]
    *_, infos = envs.step(zeros(envs))
    assert [info["t"] for info in infos] == [1, 1, 1]
    assert [info["elapsed_step"] for info in infos] == [1, 1, 1]
    assert not any(info["first"] for info in infos)


def test_finals_become_a_list(make: Any) -> None:
    envs = wrappers.DictInfoToList(make(CountingEnv, env_kwargs=LENGTHS, autoreset="same_step"))
    envs.reset(seed=0)
    envs.step(zeros(envs))
    *_, infos = envs.step(zeros(envs))
    assert ["final_obs" in info for info in infos] == [True, False, False]
    assert read_row(infos[0]["final_obs"]).step == 2


def test_observations_and_rewards_can_be_transformed(make: Any) -> None:
    normalized = wrappers.NormalizeObservation(make("Pendulum-v1", max_episode_steps=9))
    envs = wrappers.ClipAction(wrappers.ClipReward(normalized, -0.5, 0.5))
    obs, _ = envs.reset(seed=0)
    assert obs.shape == (3, 3)
    for _ in range(20):
        obs, rewards, *_ = envs.step(np.full((3, 1), 99, np.float32))
        assert (np.abs(rewards) <= 0.5).all()
    assert normalized.obs_rms.count > 60


def test_wrappers_reach_what_shoal_adds(make: Any) -> None:
    envs = wrappers.RecordEpisodeStatistics(make())
    envs.reset(seed=0)
    envs.step(zeros(envs))
    assert envs.unwrapped.stats().steps == 3
    assert envs.unwrapped.get_attr("total_steps") == (1, 1, 1)
    envs.close()
    assert envs.unwrapped.closed


def test_single_env_wrappers_run_where_the_env_runs(make: Any) -> None:
    envs = make("CartPole-v1", wrappers=[gym.wrappers.FlattenObservation, gym.wrappers.RecordEpisodeStatistics])
    envs.reset(seed=0)
    lengths = []
    for _ in range(60):
        *_, terminated, truncated, infos = envs.step(np.ones(3, int))
        if (over := terminated | truncated).any():
            np.testing.assert_array_equal(infos["_episode"], over)
            np.testing.assert_array_equal(infos["episode"]["l"][over], infos["elapsed_step"][over])
            lengths += infos["episode"]["l"][over].tolist()
    assert len(lengths) > 10


# ---------------------------------------------------------------------- nobody sees what another does


class Levels(CountingEnv):
    """Takes what it is told out of its options."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed)
        options["seen"].append(1)
        return obs, {**info, "level": options.pop("level")}


def test_every_env_has_options_of_its_own(make: Any) -> None:
    options: dict[str, Any] = {"level": 5, "seen": []}
    _, infos = make(Levels).reset(seed=1, options=options)
    assert infos["level"].tolist() == [5, 5, 5]
    assert options == {"level": 5, "seen": []}


class Chooser(gym.Env[Any, Any]):
    """Draws from its own action space, as an opponent that plays at random does."""

    def __init__(self) -> None:
        self.observation_space = spaces.Discrete(100)
        self.action_space = spaces.Discrete(100)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.action_space.seed(seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        return self.action_space.sample(), 0.0, False, False, {}


def test_who_samples_from_the_spaces_takes_nothing_from_the_envs(make: Any) -> None:
    envs = make(Chooser)
    seen = []
    for is_sampling in (False, True):
        envs.reset(seed=1)
        rows = []
        for _ in range(6):
            if is_sampling:
                envs.single_action_space.sample()
            rows.append(envs.step(zeros(envs))[0].tolist())
        seen.append(rows)
    assert seen[0] == seen[1]


class Collecting(CountingEnv):
    """Tells of things that it goes on changing."""

    def __init__(self) -> None:
        super().__init__(episode_length=2)
        self.visited: set[int] = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.visited.clear()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        self.visited.add(len(self.visited))
        return obs, reward, terminated, truncated, {**info, "visited": self.visited}


def test_what_an_env_has_told_stays_as_it_was(make: Any) -> None:
    envs = make(Collecting, num_envs=1, autoreset="same_step")
    envs.reset(seed=1)
    first = envs.step(zeros(envs))[-1]
    last = envs.step(zeros(envs))[-1]["final_info"]
    assert first["visited"].tolist() == [{0}]
    assert last["visited"].tolist() == [{0, 1}]


class Spectator(CountingEnv):
    """Takes no actions."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Dict({})  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        assert action == {}
        return super().step(0)


def test_an_env_may_take_no_actions(make: Any) -> None:
    envs = make(Spectator)
    envs.reset(seed=1)
    assert [row.step for row in rows_of(envs.step({})[0])] == [1, 1, 1]


class Bandit(gym.Env[Any, Any]):
    """Shows nothing, and is over at once."""

    observation_space = spaces.Dict({})
    action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return {}, {}

    def step(self, action: Any) -> Any:
        return {}, 1.0, True, False, {"arm": int(action)}


def test_an_env_that_shows_nothing_has_a_last_info_all_the_same(make: Any) -> None:
    envs = make(Bandit, autoreset="same_step")
    envs.reset(seed=1)
    infos = envs.step(np.array([0, 1, 2]))[-1]
    assert infos["final_obs"].tolist() == [{}, {}, {}]
    assert infos["final_info"]["arm"].tolist() == [0, 1, 2]


class Rival(CountingEnv):
    """Reports last observations and infos of its own."""

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated, truncated, {"final_obs": f"at {reward:.0f}", "final_info": {"t": reward}}


def test_last_infos_of_an_envs_own_are_merged_as_in_gymnasium(make: Any) -> None:
    lengths = [1, 2, 3]
    envs = make(Rival, env_kwargs=[{"episode_length": length} for length in lengths], autoreset="same_step")
    makers = [functools.partial(Rival, episode_length=length) for length in lengths]
    others = gym.vector.SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    others.reset(seed=0)
    for _ in range(4):
        mine, theirs = envs.step(zeros(envs))[-1], others.step(zeros(others))[-1]
        assert [str(value) for value in mine["final_obs"]] == [str(value) for value in theirs["final_obs"]]
        assert mine["_final_obs"].tolist() == theirs["_final_obs"].tolist()
        assert mine["final_info"]["t"].tolist() == theirs["final_info"]["t"].tolist()
        assert mine["_final_info"].tolist() == theirs["_final_info"].tolist()
    others.close()


class Namesake(CountingEnv):
    """Uses names of shoal's own entries."""

    def step(self, action: Any) -> Any:
        *rest, info = super().step(action)
        return (*rest, {**info, "first": "mine", "extra": 1})


def test_keys_of_shoals_own_are_left_out_with_a_word(make: Any) -> None:
    envs = make(Namesake)
    envs.reset(seed=1)
    with pytest.warns(UserWarning, match=r"Namesake reports \['first'\]"):
        infos = envs.step(zeros(envs))[-1]
    assert infos["first"].tolist() == [False] * 3
    assert "_first" not in infos
    assert infos["extra"].tolist() == [1, 1, 1]
    envs.step(zeros(envs))


def test_a_missing_attribute_is_an_attribute_error(make: Any) -> None:
    envs = make()
    with pytest.raises(AttributeError, match="no attribute 'wings'") as caught:
        envs.get_attr("wings")
    assert isinstance(caught.value, EnvCallError)


def test_compiled_envs_refuse_attributes_that_nobody_would_read() -> None:
    with shoal.make_vec("CartPole-v1", 2) as envs:
        with pytest.raises(AttributeError, match="CartPole has no field 'force_mag'; it has"):
            envs.set_attr("force_mag", 50.0)
        envs.set_attr("x", 0.5)
        assert envs.get_attr("x") == (0.5, 0.5)


def test_compiled_envs_have_the_spec_and_metadata_of_their_twins() -> None:
    with shoal.make_vec("Pendulum-v1", 2, env_kwargs={"g": 9.0}, max_episode_steps=7) as envs:
        assert (envs.spec.kwargs, envs.spec.max_episode_steps) == ({"g": 9.0}, 7)
        assert envs.metadata["render_fps"] == 30
    assert gym.spec("Pendulum-v1").max_episode_steps == 200
