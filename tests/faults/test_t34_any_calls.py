"""T34: any calls in any order, with faults anywhere, and the pool keeps its word.

A machine makes calls, legal ones and others, and lets envs fail at will. The twins foretell every row, so what is lost,
repeated, torn or of another env is found at once. Beyond that:

    P1  nothing waits for ever
    P2  obs, reward, flags and counts of a row are of one and the same step
    P3  a call that is refused has moved nobody
    P4  an error names an env that has failed
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from twins import Twins

import shoal
from shoal import Restart, errors
from shoal.testing import CountingEnv

NUM_ENVS = 4
SOON_S = 30.0
ALL = list(range(NUM_ENVS))
POLICIES: dict[str, Any] = {"raise": "raise", "drop": "drop", "restart": Restart(budget=None, backoff_s=0.0)}
PHASES = ("init", "reset", "step")

some_envs = st.lists(st.sampled_from(ALL), min_size=1, max_size=NUM_ENVS, unique=True)
seeds = st.integers(0, 1000)
maybe_seeds = st.none() | seeds
an_action = st.integers(0, 4)
Command = tuple[str, Any]  # ("step", action) or ("reset", seed)


def rigged(folder: str) -> type[CountingEnv]:
    """An env that fails in the call for which it finds a file with its name."""

    class Rigged(CountingEnv):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self._trip("init")

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            self._trip("reset")
            return super().reset(seed=seed, options=options)

        def step(self, action: Any) -> Any:
            self._trip("step")
            return super().step(action)

        def _trip(self, phase: str) -> None:
            import os

            wire = f"{folder}/{self.tag}-{phase}"
            if os.path.exists(wire):
                with open(wire) as file:
                    kind = file.read()
                os.remove(wire)
                if kind == "kill":
                    os.kill(os.getpid(), 9)
                raise RuntimeError("tripped")

    return Rigged


class Caller(RuleBasedStateMachine):
    """Calls a pool of four envs.

    What is drawn must not depend on what has come back, since that is a matter of time: a rule that does not fit does
    nothing.
    """

    engine: ClassVar[str] = "serial"
    kinds: ClassVar[tuple[str, ...]] = ("raise",)

    @initialize(
        policy=st.sampled_from(list(POLICIES)),
        autoreset=st.sampled_from(["next_step", "same_step", "disabled"]),
        batch_size=st.sampled_from([2, NUM_ENVS]),
        copy=st.booleans(),
    )
    def open(self, policy: str, autoreset: str, batch_size: int, copy: bool) -> None:
        self.folder = tempfile.mkdtemp(prefix="rigged-")
        self.policy = policy
        self.autoreset = autoreset
        self.is_async = batch_size < NUM_ENVS
        self.pool = shoal.make_pool(
            [partial(rigged(self.folder), tag=i) for i in ALL],
            engine=self.engine,
            num_workers=2,
            batch_size=batch_size,
            autoreset=autoreset,
            copy=copy,
            seed=0,
            on_fault=POLICIES[policy],
        )
        self.twins = Twins(NUM_ENVS, 0, autoreset, policy)
        self.pending: dict[int, deque[Command]] = {i: deque() for i in ALL}
        self.fresh = set(ALL)
        self.unseen = set(ALL)  # have given no row, so the pool's own seed is still for them
        self.failed: set[int] = set()  # raised, and not reset since
        self.gone: set[int] = set()  # with their worker, or never built; a reset builds them anew
        self.blamed: set[int] = set()  # were ever rigged, or share a worker with one that was

    def teardown(self) -> None:
        if hasattr(self, "pool"):
            self.pool.close()
            with pytest.raises(errors.ClosedPool):
                self.pool.recv(timeout=0)
            shutil.rmtree(self.folder)

    # ------------------------------------------------------------------ faults

    @rule(env_id=st.sampled_from(ALL), phase=st.sampled_from(PHASES), data=st.data())
    def rig(self, env_id: int, phase: str, data: st.DataObject) -> None:
        """Have an env fail in its next call of this kind."""
        kind = data.draw(st.sampled_from(self.kinds))
        if self.policy == "drop" and env_id > 1:
            return  # somebody must be left
        Path(self.folder, f"{env_id}-{phase}").write_text(kind)
        neighbours = {0: {0, 1}, 1: {0, 1}, 2: {2, 3}, 3: {2, 3}}[env_id]
        self.blamed |= neighbours if kind == "kill" else {env_id}

    # ------------------------------------------------------------------ what fits, and what does not

    def is_idle(self, ids: list[int]) -> bool:
        return not any(self.pending[i] for i in ids)

    def is_ready(self, env_id: int) -> bool:
        twin = self.twins.twins[env_id]
        return env_id not in self.fresh | self.failed and not (self.autoreset == "disabled" and twin.is_due)

    def is_sound(self, env_id: int) -> bool:
        """Whether the twin knows how far the env has come, so that a reset needs no seed."""
        return not self.pending[env_id] and env_id not in self.failed | self.gone | self.fresh

    # ------------------------------------------------------------------ calls

    @rule(ids=some_envs, seed=maybe_seeds)
    def reset(self, ids: list[int], seed: int | None) -> None:
        seed = self._seed_for(ids, seed)
        self._begin_reset(ids, seed)
        self._bring_back(ids)
        self._await(lambda: self.pool.reset(seed=seed, env_id=ids), {i: ("reset", seed) for i in ids})

    @rule(ids=some_envs, seed=maybe_seeds)
    def async_reset(self, ids: list[int], seed: int | None) -> None:
        seed = self._seed_for(ids, seed)
        self._begin_reset(ids, seed)
        self._bring_back(ids)
        self.pool.async_reset(seed=seed, env_id=ids)
        for i in ids:
            self.pending[i].append(("reset", seed))

    @rule(ids=some_envs, seed=maybe_seeds)
    def restart(self, ids: list[int], seed: int | None) -> None:
        if self.policy != "raise" and not self.is_idle(ids):
            return  # how many selves they have had meanwhile is told by rows that would be dropped
        if self.unseen & set(ids) or any(self.twins.twins[i].has_lost_rows for i in ids):
            seed = 77 if seed is None else seed
        self._begin_reset(ids, seed)
        self.gone -= set(ids)
        for i in ids:
            twin = self.twins.twins[i]
            twin.rebuild(twin.incarnation + 1)
        self._await(lambda: self.pool.restart(env_id=ids, seed=seed), {i: ("reset", seed) for i in ids})

    @rule(ids=some_envs, action=an_action)
    def step(self, ids: list[int], action: int) -> None:
        ids = self._there(ids)
        if not self.is_idle(ALL) or not all(self.is_ready(i) for i in ids):
            self._refused(errors.StateError, lambda: self.pool.step([action] * len(ids), env_id=ids))
        else:
            commands = {i: ("step", action) for i in ids}
            self._await(lambda: self.pool.step([action] * len(ids), env_id=ids), commands)

    @rule(action=an_action)
    def step_all(self, action: int) -> None:
        if self.is_idle(ALL) and not self.gone and all(self.is_ready(i) for i in ALL):
            self._await(lambda: self.pool.step([action] * NUM_ENVS), {i: ("step", action) for i in ALL})

    @rule(ids=some_envs, action=an_action)
    def send(self, ids: list[int], action: int) -> None:
        ids = self._there(ids)
        if self.is_async and not self.is_idle(ids):
            return  # whether an env that is under way was dropped meanwhile is only known from its row
        if not all(self.is_ready(i) or self.pending[i] for i in ids):
            self._refused(errors.StateError, lambda: self.pool.send([action] * len(ids), env_id=ids))
            return
        if self.autoreset == "disabled" and not self.is_idle(ids):
            return  # a step after the end of an episode that is not known yet would be a fault of its own
        self.pool.send([action] * len(ids), env_id=ids)
        for i in ids:
            if not (self.is_async and self.twins.twins[i].is_out):
                self.pending[i].append(("step", action))

    @rule()
    def recv(self) -> None:
        if self.is_idle(ALL):
            self._refused(errors.NothingInFlight, lambda: self.pool.recv(timeout=0))
        else:
            self._await(lambda: self.pool.recv(timeout=SOON_S), {})

    @rule()
    def recv_what_is_there(self) -> None:
        """A caller without patience gets rows or ``RecvTimeout``, and loses nothing."""
        if not self.is_idle(ALL):
            with contextlib.suppress(errors.RecvTimeout):
                self._await(lambda: self.pool.recv(timeout=0, min_batch=1), {})

    @rule(ids=some_envs)
    def call(self, ids: list[int]) -> None:
        ids = self._there(ids)
        out = [i for i in ids if self.twins.twins[i].is_out]
        if not self.is_idle(ids) or out:
            self._refused(errors.StateError, lambda: self.pool.get_attr("tag", env_id=ids))
            return
        try:
            assert self.pool.get_attr("tag", env_id=ids) == tuple(ids)
        except errors.FaultError as error:
            self._blame(error, is_call=True)

    # ------------------------------------------------------------------ calls that nobody should make

    @rule(count=st.sampled_from([0, 1, 3, 5]), is_send=st.booleans())
    def send_a_wrong_number_of_actions(self, count: int, is_send: bool) -> None:
        call = self.pool.send if is_send else self.pool.step
        self._refused((errors.ActionError, errors.StateError), lambda: call([0] * count))

    @rule(ids=st.sampled_from([[0, 0], [-1], [4], [], [0.5]]), what=st.sampled_from(["step", "send", "reset", "call"]))
    def name_wrong_envs(self, ids: list[Any], what: str) -> None:
        calls = {
            "step": lambda: self.pool.step([0] * len(ids), env_id=ids),
            "send": lambda: self.pool.send([0] * len(ids), env_id=ids),
            "reset": lambda: self.pool.reset(env_id=ids),
            "call": lambda: self.pool.get_attr("tag", env_id=ids),
        }
        self._refused((errors.ActionError, errors.StateError), calls[what])

    @rule(action=st.sampled_from([5, -1]), ids=some_envs)
    def send_an_action_that_is_none(self, action: int, ids: list[int]) -> None:
        self._refused(errors.ActionError, lambda: self.pool.send([action] * len(ids), env_id=ids))

    # ------------------------------------------------------------------ the model

    @invariant()
    def the_books_are_kept(self) -> None:
        if not hasattr(self, "pool"):
            return
        stats = self.pool.stats()
        assert self.twins.faults <= stats.faults
        assert stats.dropped >= sum(twin.is_out for twin in self.twins.twins)
        if self.policy != "drop":
            assert stats.dropped == 0

    def _there(self, ids: list[int]) -> list[int]:
        """Those of these envs that still have a worker; if there are none, all envs are brought back."""
        while self.gone >= set(ids):  # it may fail again, as often as it is rigged
            self.restart(ALL, 5)
        return [i for i in ids if i not in self.gone]

    def _bring_back(self, ids: list[int]) -> None:
        """Those that are gone have become their next selves."""
        for i in self.gone & set(ids):
            twin = self.twins.twins[i]
            twin.rebuild(twin.incarnation + 1)
        self.gone -= set(ids)

    def _seed_for(self, ids: list[int], seed: int | None) -> int | None:
        return seed if all(self.is_sound(i) for i in ids) or seed is not None else 77

    def _begin_reset(self, ids: list[int], seed: int | None) -> None:
        """What these envs were doing is dropped, and whatever becomes of them, they have a new root."""
        self.fresh -= set(ids)
        self.failed -= set(ids)
        for i in ids:
            twin = self.twins.twins[i]
            twin.has_lost_rows |= bool(self.pending[i])
            self.pending[i].clear()
            if seed is not None:
                twin.root = seed + i

    def _refused(self, kind: Any, call: Any) -> None:
        with pytest.raises(kind) as caught:
            call()
        assert not isinstance(caught.value, errors.FaultError)

    def _await(self, call: Any, commands: dict[int, Command]) -> None:
        """Make a call that sends these commands, and take what it returns or raises."""
        for i, command in commands.items():
            self.pending[i].append(command)
        try:
            batch = call()
        except errors.FaultError as error:
            self._blame(error)
            return
        for row, i in enumerate(batch.env_id.tolist()):
            self._take(one_row(batch, row), i, *self.pending[i].popleft())

    def _take(self, batch: shoal.Batch, env_id: int, kind: str, value: Any) -> None:
        self.unseen.discard(env_id)
        if kind == "reset":
            self.twins.take_reset(batch, value)
        else:
            self.twins.take(batch, {env_id: value})

    def _blame(self, error: errors.FaultError, *, is_call: bool = False) -> None:
        """An error is about envs that were rigged, or fell with one, and ends what they were doing."""
        is_of_call = error.where.phase == "call" or isinstance(error, errors.WorkerDied)
        assert self.policy == "raise" or error.where.phase == "construct" or (is_call and is_of_call), error
        texts = [str(error), *(note for note in getattr(error, "__notes__", ()) if note.startswith("Also: "))]
        named = {i for text in texts for i in envs_in(text)}
        assert set(error.env_ids) <= named <= self.blamed, (error, self.blamed)
        if self.policy != "raise":
            return
        fallen = {i for text in texts if "worker process is gone" in text for i in envs_in(text)}
        self.gone |= {i for text in texts if text.removeprefix("Also: ").startswith("construct") for i in envs_in(text)}
        if error.where.phase != "call":
            for i in named - fallen:
                self.failed.add(i)
                self.pending[i].clear()
        if fallen - self.gone:
            self.gone |= fallen
            self._drain()

    def _drain(self) -> None:
        """A worker has died, maybe after it had finished some rows: take those, and see that nobody else lost one."""
        with contextlib.suppress(errors.NothingInFlight):
            while True:
                self._await(lambda: self.pool.recv(timeout=SOON_S), {})
        for i in ALL:
            assert not self.pending[i] or i in self.gone, (i, self.pending[i])
            self.pending[i].clear()


def envs_in(text: str) -> set[int]:
    """The envs that the text of an error names: one, or all of a worker."""
    found = re.search(r"failed in envs? (\d)(?:-(\d))?", text)
    assert found, text
    return set(range(int(found[1]), int(found[2] or found[1]) + 1))


def one_row(batch: shoal.Batch, row: int) -> shoal.Batch:
    """One row of a batch, as a batch."""
    infos = [(0, info) for place, info in batch.infos if place == row]
    finals = {0: batch.finals[row]} if row in batch.finals else {}
    keep = slice(row, row + 1)
    columns = (
        batch.obs,
        batch.reward,
        batch.terminated,
        batch.truncated,
        batch.env_id,
        batch.elapsed_step,
        batch.first,
    )
    return shoal.Batch(*(column[keep] for column in columns), infos, finals)


class ThreadCaller(Caller):
    engine = "thread"


class ProcessCaller(Caller):
    engine = "process"
    kinds = ("raise", "kill")


def run(machine: type[Caller], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_t34_any_calls_in_one_thread() -> None:
    run(Caller, examples=10, steps=25)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Caller, ThreadCaller])
def test_t34_many_calls(machine: type[Caller]) -> None:
    run(machine, examples=60, steps=50)


@pytest.mark.slow
def test_t34_any_calls_with_processes_that_die() -> None:
    run(ProcessCaller, examples=15, steps=40)
