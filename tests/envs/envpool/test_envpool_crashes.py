"""What ends a program that uses EnvPool by itself, and what is an exception behind a pool."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest

pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'shoal[envpool]'")

import shoal
from shoal.errors import ArgumentError

CRASHES = {
    "an id that is too large": ("CartPole-v1", "envs.step(np.zeros(1, np.int32), np.array([10**8]))"),
    "an action without an axis": ("CartPole-v1", "envs.step(np.array(1))"),
    "too few actions": ("CartPole-v1", "envs.step(np.zeros(1, np.int32))"),
    "a reset of an env that is not there": ("CartPole-v1", "envs.reset(env_id=np.array([-(10**8)]))"),
    "a button that is not there": ("Pong-v5", "[envs.step(np.full(3, 10**6, np.int32)) for _ in range(9)]"),
    "a move that is not there": ("MiniGrid-Empty-5x5-v0", "[envs.step(np.full(3, 10**6, np.int32)) for _ in range(9)]"),
}
# Each in a process of its own, and what comes after it is never reached.
RAW = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, envpool
for task, call in {crashes!r}:
    child = os.fork()
    if child == 0:
        envs = envpool.make_gymnasium(task, num_envs=3)
        envs.reset()
        eval(call)
        envs.step(np.zeros(3, np.int32))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
SHOAL = """
import numpy as np, os, shoal
def refused(call):
    try:
        call()
    except shoal.errors.ShoalError as error:
        print("refused", type(error).__name__)
    else:
        raise SystemExit("it was not refused")
def opened(task):
    envs = shoal.make_pool(task, 3, engine="envpool", seed=1)
    envs.reset()
    return envs
"""


def run(source: str) -> list[str]:
    """The lines that a program has written, if it has come to its end."""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_ends_programs_that_use_envpool_by_itself() -> None:
    codes = dict(zip(CRASHES, map(int, run(RAW.format(crashes=list(CRASHES.values())))), strict=True))
    assert {what: code for what, code in codes.items() if code >= 0} == {}


def test_behind_a_pool_it_is_an_exception_and_the_pool_goes_on() -> None:
    calls = """
    for task, call in {crashes!r}:
        envs = opened(task)
        refused(lambda: eval(call))
        envs.step(np.zeros(3, np.int32))
    """
    source = textwrap.dedent(calls).format(crashes=list(CRASHES.values()))
    assert len(run(SHOAL + source)) == len(CRASHES)


def test_whatever_else_is_sent_the_program_goes_on() -> None:
    calls = """
    envs = opened("CartPole-v1")
    for bad in ([0, 0], [3], [-1], [0.5], "x", np.array([2**40]), [[0]]):
        refused(lambda: envs.step(np.zeros(len(bad), np.int32), bad))
        refused(lambda: envs.reset(env_id=bad))
        refused(lambda: envs.render(bad))
    ragged = [[0], [0, 1], [1]]
    for bad in (None, [], {}, {"action": np.zeros(3)}, "xyz", np.full(3, "a"), np.zeros((3, 1), int), ragged):
        refused(lambda: envs.step(bad))
        refused(lambda: envs.send(bad))
    refused(lambda: envs.recv())
    envs.send(np.zeros(3, int))
    refused(lambda: envs.step(np.zeros(3, int)))
    refused(lambda: envs.snapshot())
    envs.reset(env_id=[1])
    envs.close()
    envs.close()
    refused(lambda: envs.step(np.zeros(3, int)))
    refused(lambda: envs.reset())
    """
    assert len(run(SHOAL + textwrap.dedent(calls))) == 3 * 7 + 2 * 8 + 5


def test_a_forked_child_gets_an_error_and_can_end() -> None:
    calls = """
    envs = opened("CartPole-v1")
    child = os.fork()
    if child == 0:
        refused(lambda: envs.step(np.zeros(3, int)))
        refused(lambda: envs.reset())
        envs.close()
        del envs
        raise SystemExit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    envs.step(np.zeros(3, int))
    print("alive")
    """
    assert run(SHOAL + textwrap.dedent(calls))[-1] == "alive"


@pytest.mark.parametrize(
    ("task_id", "options", "says"),
    [
        ("Pong-v5", {"noop_max": 0}, "SIGSEGV"),
        ("Catch-v0", {"height": 0}, "nothing in observation"),
        ("MiniGrid-Empty-5x5-v0", {"size": 1}, "SIGABRT.*Check failed"),
        ("Catch-v0", {"height": object()}, "plain data"),
        ("FrozenLake-v1", {"render_mode": "rgb_array"}, "render not implemented"),
    ],
)
def test_options_that_would_end_the_program_are_refused(task_id: str, options: dict[str, object], says: str) -> None:
    with pytest.raises(ArgumentError, match=f"(?s){says}"):
        shoal.make_pool(task_id, 2, engine="envpool", env_kwargs=options)


def test_pictures_are_those_of_the_env_that_was_asked() -> None:
    with shoal.make_vec("CartPole-v1", 3, engine="envpool", env_kwargs={"render_mode": "rgb_array"}) as envs:
        envs.reset(seed=1)
        first, second, third = envs.render()
        assert first.shape == (400, 600, 3)
        assert first.dtype == np.uint8
        assert not np.array_equal(second, third)
        envs.pool.reset(seed=[3], env_id=[1])  # what env 2 had begun with
        np.testing.assert_array_equal(envs.render()[1], third)


def test_a_game_goes_on_after_a_life_unless_a_reset_is_asked_for() -> None:
    """Under the pool's own rule, in every mode that has one; as EnvPool does by itself."""
    for autoreset in ("next_step", "same_step"):
        with shoal.make_pool(
            "Breakout-v5", 2, engine="envpool", autoreset=autoreset, env_kwargs={"episodic_life": True}, seed=1
        ) as pool:
            pool.reset()
            batch = pool.step(np.zeros(2, int))
            while not batch.terminated.any():
                batch = pool.step(np.full(2, 2))
            (over,) = np.flatnonzero(batch.terminated)[:1].tolist()
            batch = pool.step(np.full(2, 2))
            assert batch.fields["lives"][over] == 4
            assert batch.fields["elapsed_step"][over] > 0 or autoreset == "next_step"
            assert pool.reset(env_id=[over]).fields["lives"].tolist() == [5]
