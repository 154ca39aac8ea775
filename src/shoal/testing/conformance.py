"""The rules that every engine keeps, as tests that anyone can run on an engine of their own.

    class TestMyEngine(EngineConformance):
        def make_pool(self, env_fns, **options):
            return my_make_pool(env_fns, **options)

pytest then runs one test per rule. Rows are judged against the serial engine, which is the reference, and against
what `CountingEnv` writes into them. A rule that does not hold raises ``AssertionError`` with the rule in words, then
what was found instead. Nothing here needs pytest itself: each method is a plain function that returns or raises.

What only some engines can do (ending a hung env, surviving a killed worker) is not a rule, and not tested here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.build import make_pool
from shoal.errors import (
    ActionError,
    ClosedPool,
    EnvCallError,
    EnvConstructError,
    EnvResetError,
    EnvStepError,
    NothingInFlight,
    NotReset,
    SpecError,
    StateError,
)
from shoal.testing.envs import CountingEnv, SleepyEnv, WrappedBufferEnv, read_row
from shoal.testing.faults import FaultEnv, InjectedFault
from shoal.testing.judging import assert_ids, assert_same, assert_told, caught, plain, play, rows_by_env
from shoal.testing.leaks import no_leftovers
from shoal.testing.structured import CustomSpaceEnv, DictTupleEnv, GraphEnv, SequenceEnv, TextEnv

if TYPE_CHECKING:
    from shoal.batch import Batch
    from shoal.pool import Pool

__all__ = ["EngineConformance", "EnvFns", "rule"]

EnvFns = Sequence[Callable[[], Any]]

MODES = ("next_step", "same_step", "disabled")
CLOSE_LIMIT_S = 5.0
MIN_ENVS = 4


@contextlib.contextmanager
def rule(text: str) -> Iterator[None]:
    """Put the rule in words before whatever assertion fails in the block."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"rule: {text}. But {error}") from error


class EngineConformance:
    """One method per rule; see the module's docstring for how to use it.

    Attributes:
        num_envs: How many envs the pools have; at least 4.
        num_steps: How many steps are compared with the serial engine.
    """

    num_envs = MIN_ENVS
    num_steps = 25

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.num_envs < MIN_ENVS:
            told = f"{cls.__name__}.num_envs must be at least {MIN_ENVS}, since rules name envs 0 to {MIN_ENVS - 1}"
            raise ValueError(f"{told}, got {cls.num_envs}")

    def make_pool(self, env_fns: EnvFns, **options: Any) -> Pool:
        """A pool of the engine under test.

        Args:
            env_fns: One callable per env. They pickle.
            **options: Any of ``autoreset``, ``batch_size`` and ``seed``, as in `shoal.make_pool`.
        """
        raise NotImplementedError("give make_pool: it makes a pool of the engine under test")

    # ------------------------------------------------------------------ rows

    def test_rows_are_those_of_the_serial_engine(self) -> None:
        """Observations, rewards, flags, marks, infos and finals, in every autoreset mode."""
        for mode in MODES:
            self._compare(self._counting(infos=True), f"autoreset {mode}", autoreset=mode)

    def test_nested_and_unusual_spaces_give_the_rows_of_the_serial_engine(self) -> None:
        """Dicts, tuples, text, sequences, graphs and spaces that only the user knows."""
        for env in (DictTupleEnv, TextEnv, SequenceEnv, GraphEnv, CustomSpaceEnv):
            self._compare([env] * self.num_envs, env.__name__, autoreset="same_step")

    def test_a_batch_is_not_changed_by_later_steps(self) -> None:
        """Not even if the env returns the same buffer every time."""
        fns = [partial(WrappedBufferEnv, tag=i, episode_length=50) for i in range(self.num_envs)]
        with self._pool("a batch keeps its values while the pool goes on", fns) as pool:
            held = [pool.reset(seed=3), *(pool.step(self._zeros()) for _ in range(5))]
            serials = [[read_row(obs).total for obs in batch.obs] for batch in held]
            rewards = [batch.reward.astype(int).tolist() for batch in held]
            assert serials[1:] == rewards[1:], f"observations of steps {serials} stand beside rewards {rewards}"

    def test_rows_come_in_the_order_of_the_ids(self) -> None:
        """Whatever order they were asked in; envs that were not asked do not move."""
        ids = [2, 0, 3]
        with self._pool("rows come in the order of the ids sent", self._counting()) as pool:
            assert_ids(pool.reset(seed=1), range(self.num_envs))
            assert_ids(pool.step([1, 2, 3], env_id=ids), ids)
            moved = pool.get_attr("total_steps")
            assert moved == (1, 0, 1, 1, *self._zeros()[4:]), f"envs {ids} were asked, and the envs moved {moved} steps"
            assert_ids(pool.reset(seed=5, env_id=ids[::-1]), ids[::-1])
            pool.send([4, 4], env_id=[1, 2])
            pool.send([3, 3], env_id=[3, 0])
            first, second = pool.recv(), pool.recv()
            assert_ids(first, [1, 2])
            assert_ids(second, [3, 0])
            actions = [read_row(obs).action for obs in (*first.obs, *second.obs)]
            assert actions == [4, 4, 3, 3], f"envs 1, 2, 3, 0 were sent 4, 4, 3, 3 and took {actions}"

    def test_an_asynchronous_pool_gives_every_row_once_and_in_order(self) -> None:
        """Each env's rows are those of the serial engine, whatever the order between envs."""
        fns = [partial(SleepyEnv, 0.001, tag=i, infos=True) for i in range(self.num_envs)]
        with make_pool(fns, engine="serial", seed=7) as reference:
            expected = rows_by_env([reference.reset(), *(reference.step(self._zeros()) for _ in range(10))])
        with self._pool("an asynchronous pool gives every row once", fns, batch_size=2, seed=7) as pool:
            pool.async_reset()
            batches, sent = [], dict.fromkeys(range(self.num_envs), 0)
            while any(count <= 10 for count in sent.values()):
                batches.append(batch := pool.recv(timeout=30))
                for i in batch.env_id.tolist():
                    sent[i] += 1
                again = [i for i in batch.env_id.tolist() if sent[i] <= 10]
                if again:
                    pool.send([0] * len(again), env_id=again)
            assert_same(rows_by_env(batches), expected, "rows by env")

    # ------------------------------------------------------------------ episodes and seeds

    def test_first_and_elapsed_mark_the_episode(self) -> None:
        """``first`` is true for an episode's first observation; ``elapsed_step`` counts the steps behind a reward."""
        for mode in MODES[:2]:
            with rule(f"first and elapsed_step mark the episode ({mode})"):
                for batch in self._play(self._counting(), autoreset=mode):
                    steps = np.array([read_row(obs).step for obs in batch.obs])
                    assert (batch.first == (steps == 0)).all(), f"first {batch.first} with steps {steps}"
                    finished = {row: read_row(obs).step for row, (obs, _) in batch.finals.items()}
                    elapsed = [finished.get(row, step) for row, step in enumerate(steps.tolist())]
                    assert batch.elapsed_step.tolist() == elapsed, f"elapsed {batch.elapsed_step}, really {elapsed}"

    def test_same_step_hands_over_the_final_observation(self) -> None:
        """One for every row that ended an episode, and only for these."""
        with rule("same_step rows that end an episode carry its last observation and info"):
            ends = 0
            for batch in self._play(self._counting(infos=True), autoreset="same_step"):
                over = np.flatnonzero(batch.terminated | batch.truncated).tolist()
                assert sorted(batch.finals) == over, f"finals for rows {sorted(batch.finals)}, ends in rows {over}"
                for row, (obs, info) in batch.finals.items():
                    last, first = read_row(obs), read_row(batch.obs[row])
                    assert last.total == batch.reward[row], f"final {last} beside reward {batch.reward[row]}"
                    assert info == {"t": last.step, "episode": last.episode}, f"final info {info} for {last}"
                    assert first.episode == last.episode + 1, f"{first} after {last}"
                    ends += 1
            assert ends, "no episode ended"

    def test_without_autoreset_an_ended_episode_waits_for_its_reset(self) -> None:
        """A step past the end is refused, and after a reset the env goes on."""
        fns = self._counting(episode_length=2)
        with self._pool("without autoreset a step past the end is refused", fns, autoreset="disabled") as pool:
            step = partial(pool.step, self._zeros())
            caught(NotReset, step)
            pool.reset(seed=1)
            step()
            step()
            caught(NotReset, step)
            assert pool.reset(env_id=[1]).first.all(), "a reset did not give a first row"
            assert read_row(pool.step([0], env_id=[1]).obs[0]).step == 1, "the env did not go on after its reset"

    def test_every_env_has_its_own_seed(self) -> None:
        """An int gives env ``i`` the seed ``s + i``, whoever else is reset; options reach the env."""
        with self._pool("env i of a pool reset with seed s has seed s + i", self._counting()) as pool:
            everyone = [read_row(obs).draw for obs in pool.reset(seed=11).obs]
            assert len(set(everyone)) > 1, f"all envs drew {everyone[0]}"
            some = [read_row(obs).draw for obs in pool.reset(seed=11, env_id=[3, 1]).obs]
            assert some == [everyone[3], everyone[1]], f"drew {some}, with all others reset {everyone}"
            listed = [read_row(obs).draw for obs in pool.reset(seed=[14, 11], env_id=[0, 3]).obs]
            assert listed == [everyone[3], everyone[0]], f"seeds 14 and 11 drew {listed}, before {everyone}"
            pool.reset(options={"level": 3}, env_id=[2])
            options = pool.get_attr("last_options", env_id=[1, 2])
            assert options == (None, {"level": 3}), f"options arrived as {options}"

    # ------------------------------------------------------------------ refusals

    def test_a_bad_send_moves_no_env(self) -> None:
        """Count, shape, dtype, range and ids are judged for the whole batch before anything is sent."""
        zeros, size = self._zeros(), self.num_envs
        of_all: list[Any] = [zeros[1:], [*zeros, 0], [*zeros[1:], 5], [0.5] * size, [[0]] * size]
        of_some = [([0, 0], ids) for ids in ([1, 1], [1, size], [-1, 1])]
        with self._pool("a send is taken as a whole or not at all", self._counting()) as pool:
            pool.reset(seed=2)
            for action, env_id in [*((action, None) for action in of_all), *of_some]:
                caught(ActionError, partial(pool.send, action, env_id=env_id))
                caught(NothingInFlight, partial(pool.recv, timeout=0))
                moved = pool.get_attr("total_steps")
                assert moved == (0,) * self.num_envs, f"envs moved {moved} steps on action {action}, env_id {env_id}"
            steps = [read_row(obs).step for obs in pool.step(self._zeros()).obs]
            assert steps == [1] * self.num_envs, f"after the refusals a good step led to {steps}"

    # ------------------------------------------------------------------ faults

    def test_an_exception_names_env_phase_and_cause(self) -> None:
        """In ``reset``, ``step`` and calls, with the traceback of the env's side."""
        with rule("an exception in an env arrives with env id, phase, traceback and cause"):
            with self.make_pool(self._faulty(1, "raise", where="reset", at=2)) as pool:
                pool.reset()
                assert_told(caught(EnvResetError, pool.reset), 1, "reset", InjectedFault, "injected fault in reset")
            with self.make_pool(self._faulty(2, "raise")) as pool:
                pool.reset()
                error = caught(EnvStepError, lambda: pool.step(self._zeros()))
                assert_told(error, 2, "step", InjectedFault, "injected fault in step")
            with self.make_pool(self._counting()) as pool:
                pool.reset()
                failed = caught(EnvCallError, lambda: pool.call("no_such_method", env_id=[3]))
                assert_told(failed, 3, "call", AttributeError, "no_such_method")
                steps = pool.step(self._zeros()).elapsed_step.tolist()
                assert steps == [1] * self.num_envs, f"steps {steps} after a failed call, expected 1 each"

    def test_an_env_that_exits_does_not_end_its_caller(self) -> None:
        """``SystemExit`` in an env is a fault like any other."""
        with self._pool("sys.exit in an env is a fault", self._faulty(1, "sys_exit")) as pool:
            pool.reset()
            error = caught(EnvStepError, lambda: pool.step(self._zeros()))
            assert_told(error, 1, "step", SystemExit, "SystemExit")

    def test_rows_of_the_other_envs_survive_an_exception(self) -> None:
        """``recv`` returns them after the error, and they are the right ones."""
        with self._pool("the other rows of a batch survive a fault", self._faulty(1, "raise", at=2)) as pool:
            pool.reset()
            pool.step(self._zeros())
            caught(EnvStepError, lambda: pool.step(self._zeros()))
            batch = pool.recv(timeout=10)
            assert_ids(batch, [i for i in range(self.num_envs) if i != 1])
            rows = [read_row(obs) for obs in batch.obs]
            assert [row.tag for row in rows] == batch.env_id.tolist(), f"rows {rows} for ids {batch.env_id}"
            assert {row.step for row in rows} == {2}, f"rows of steps {[row.step for row in rows]}, expected 2"

    def test_an_env_that_failed_works_again_after_a_reset(self) -> None:
        """Until then, its steps are refused."""
        with self._pool("an env that failed goes on after a reset", self._faulty(1, "raise")) as pool:
            pool.reset()
            caught(EnvStepError, lambda: pool.step(self._zeros()))
            pool.recv(timeout=10)
            caught(StateError, lambda: pool.step([0], env_id=[1]))
            assert_ids(pool.reset(env_id=[1]), [1])
            steps = [read_row(obs).step for obs in pool.step(self._zeros()).obs]
            assert steps == [2 if i != 1 else 1 for i in range(self.num_envs)], f"steps {steps} after the reset"

    def test_what_an_env_returns_is_held_to_its_contract(self) -> None:
        """Observation, reward, flags and the step tuple: the error names env and field."""
        fields = (
            ("bad_shape", "observation"),
            ("reward_none", "reward"),
            ("flag_int", "terminated"),
            ("four_tuple", "old"),
        )
        for fault, field in fields:
            with self._pool(f"a broken contract is named by env and field ({fault})", self._faulty(2, fault)) as pool:
                pool.reset()
                error = caught(EnvStepError, partial(pool.step, self._zeros()))
                assert_told(error, 2, "step", SpecError, field)

    def test_envs_that_cannot_be_built_are_all_named_and_nothing_is_left(self) -> None:
        """One error for all of them."""
        fns = self._faulty(1, "raise", where="init")
        fns[3] = partial(FaultEnv, "raise_two_args", where="init", tag=3)
        with rule("one error names every env that could not be built"), no_leftovers():
            error = caught(EnvConstructError, lambda: self.make_pool(fns))
            assert error.env_ids == (1, 3), f"envs 1 and 3 failed, and the error names {error.env_ids}"
            for part in ("InjectedFault", "TwoArgFault"):
                assert part in str(error), f"{part} is not in {error}"

    def test_envs_of_different_spaces_are_refused(self) -> None:
        """With the id of the one that differs."""
        fns = self._counting()
        fns[2] = partial(CountingEnv, tag=2, obs_shape=9)
        with rule("envs of one pool have the same spaces"), no_leftovers():
            error = caught(EnvConstructError, lambda: self.make_pool(fns))
            assert error.env_ids == (2,), f"env 2 differs, and the error names {error.env_ids}"

    # ------------------------------------------------------------------ calls, attributes, the end

    def test_calls_and_attributes_reach_each_env(self) -> None:
        """In the order of the ids, with one value for all or one each."""
        with self._pool("call, get_attr and set_attr reach each env", self._counting()) as pool:
            pool.reset(seed=1)
            assert pool.get_attr("tag") == tuple(range(self.num_envs)), f"get_attr gave {pool.get_attr('tag')}"
            pool.set_attr("tag", [10, 20], env_id=[3, 1])
            assert pool.get_attr("tag", env_id=[1, 3]) == (20, 10), f"set_attr led to {pool.get_attr('tag')}"
            pool.set_attr("tag", 7)
            assert pool.call("render") == (None,) * self.num_envs, "call did not return what the method returns"
            tags = [read_row(obs).tag for obs in pool.step(self._zeros()).obs]
            assert tags == [7] * self.num_envs, f"after set_attr the rows have tags {tags}"

    def test_close_is_idempotent_quick_and_leaves_nothing(self) -> None:
        """Idle, with rows under way, and twice; afterwards the pool refuses every call."""

        def use_and_close(sent: bool) -> None:
            pool = self.make_pool([partial(SleepyEnv, 0.01)] * self.num_envs)
            pool.reset()
            if sent:
                pool.send(self._zeros())
            start = monotonic()
            pool.close()
            pool.close()
            took = monotonic() - start
            assert took < CLOSE_LIMIT_S, f"close took {took:.1f} s"
            for refused in (pool.reset, pool.recv, partial(pool.step, self._zeros()), partial(pool.call, "render")):
                caught(ClosedPool, refused)

        for sent in (False, True):
            with rule("close ends everything, also twice"), no_leftovers():
                use_and_close(sent)

    def test_an_exception_in_with_goes_through_and_leaves_nothing(self) -> None:
        """The pool is closed along the way."""

        def leave() -> None:
            with self.make_pool(self._counting()) as pool:
                pool.reset()
                raise KeyError("on purpose")

        with rule("leaving `with` by an exception closes the pool"), no_leftovers():
            caught(KeyError, leave)

    # ------------------------------------------------------------------ parts

    @contextlib.contextmanager
    def _pool(self, text: str, fns: EnvFns, **options: Any) -> Iterator[Pool]:
        """A pool that is closed at the end, and a rule over what is done with it."""
        with rule(text), self.make_pool(fns, **options) as pool:
            yield pool

    def _counting(self, **settings: Any) -> list[Callable[[], Any]]:
        return [partial(CountingEnv, tag=i, **settings) for i in range(self.num_envs)]

    def _faulty(self, env_id: int, fault: str, **settings: Any) -> list[Callable[[], Any]]:
        """Counting envs, one of which has a fault in it; no episode ends before the fault."""
        fns = self._counting(episode_length=50)
        fns[env_id] = partial(FaultEnv, fault, **{"at": 1, "tag": env_id, "episode_length": 50, **settings})
        return fns

    def _zeros(self) -> list[int]:
        return [0] * self.num_envs

    def _play(self, fns: EnvFns, **options: Any) -> list[Batch]:
        with self.make_pool(fns, **options) as pool:
            return play(pool, self.num_steps)

    def _compare(self, fns: EnvFns, what: str, **options: Any) -> None:
        with make_pool(fns, engine="serial", **options) as reference:
            expected = play(reference, self.num_steps)
        with rule(f"rows are those of the serial engine ({what})"):
            for number, (mine, theirs) in enumerate(zip(self._play(fns, **options), expected, strict=True)):
                assert_same(plain(mine), plain(theirs), f"batch {number}")
