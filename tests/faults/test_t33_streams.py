"""T33: whatever an env does to stdout and stderr, what the pool and its workers say to each other is unharmed.

Workers write to the streams that the fork server was started with, so each case is an interpreter of its own. That
also keeps a protocol that does get harmed from taking the test run with it.
"""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from fault_cases import run_python

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.slow

# The program says what came of it in a file, since its streams are what is tested.
PROGRAM = dedent("""
    import os, sys, time, warnings
    import numpy as np
    import shoal
    from shoal.testing import CountingEnv, read_row
    warnings.filterwarnings("ignore", message=".*use of fork")

    def write(fd, data):
        try:
            os.write(fd, data)
        except OSError:
            pass

    class Mine(CountingEnv):
        def __init__(self, tag=0):
            super().__init__(tag=tag, episode_length=50)
            if tag == 1:
                self.begin()

        def begin(self): pass
        def act(self): pass

        def step(self, action):
            if self.tag == 1:
                self.act()
            return super().step(action)

    def run(kind, method="forkserver", **options):
        kwargs = [{"tag": i} for i in range(4)]
        with shoal.make_pool(kind, 4, env_kwargs=kwargs, engine="process", num_workers=2, start_method=method,
                             step_timeout=10, close_timeout=2, **options) as pool:
            pool.reset(seed=0)
            for number in range(1, 6):
                batch = pool.step([1, 2, 3, 4])
                rows = [read_row(obs) for obs in batch.obs]
                assert [(row.tag, row.step, row.action) for row in rows] == [(i, number, i + 1) for i in range(4)], rows
                assert batch.reward.tolist() == [number] * 4, batch.reward
                assert not (batch.terminated | batch.truncated).any()
            assert pool.get_attr("tag") == (0, 1, 2, 3)
            start = time.monotonic()
        assert time.monotonic() - start < 5

    def report(text):
        with open(sys.argv[1], "w") as file:
            file.write(text)
""")

# What the env does when it is built, and in every step.
DEEDS = {
    "closes stdout": ("os.close(1)", "pass"),
    "closes stderr": ("os.close(2)", "pass"),
    "closes all three": ("[os.close(fd) for fd in (0, 1, 2)]", "pass"),
    "closes the file objects": ("sys.stdout.close(); sys.stderr.close()", "pass"),
    "closes them in a step": ("pass", "[os.close(fd) for fd in (0, 1, 2) if self._step == 1]"),
    "has no streams": ("sys.stdout = sys.stderr = None", "print('nowhere')"),
    "opens a file in place of stdout": (
        "os.close(1); self.file = open(os.devnull, 'w')",
        "print('x' * 4096); write(1, b'x' * 4096)",
    ),
    "puts stderr in place of stdout": ("os.dup2(2, 1)", "print('x' * 100)"),
}
WRITES_ON = {
    "stdout": ("os.close(1)", "write(1, b'x' * 4096)"),
    "stderr": ("os.close(2)", "write(2, b'x' * 4096)"),
    "both": ("[os.close(fd) for fd in (0, 1, 2)]", "[write(fd, b'x' * 4096) for fd in (1, 2)]"),
}


def play(deeds: list[tuple[str, str]], method: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = [PROGRAM]
    for begin, act in deeds:
        program.append(
            dedent(f"""
                class Rude(Mine):
                    def begin(self):
                        {begin}
                    def act(self):
                        {act}

                run(Rude, {method!r})
            """)
        )
    (folder / "program.py").write_text("".join([*program, 'report("unharmed")\n']))
    return run_python("program.py", "result", cwd=folder)


def assert_unharmed(result: subprocess.CompletedProcess[str], folder: Path) -> None:
    assert result.returncode == 0, result.stderr[-2000:]
    assert (folder / "result").read_text() == "unharmed"


def test_t33_what_an_env_does_to_its_streams_harms_nothing(tmp_path: Path) -> None:
    # All in one program, one pool after another: starting it takes longer than all of them.
    assert_unharmed(play(list(DEEDS.values()), "forkserver", tmp_path), tmp_path)


# A number that an env has closed is the next to be given out, and the env goes on writing to it.
@pytest.mark.parametrize(
    ("stream", "method"),
    [*((stream, "forkserver") for stream in WRITES_ON), ("stdout", "fork"), ("stdout", "spawn")],
)
def test_t33_an_env_that_writes_to_a_stream_it_has_closed_harms_nothing(
    stream: str, method: str, tmp_path: Path
) -> None:
    assert_unharmed(play([WRITES_ON[stream]], method, tmp_path), tmp_path)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_t33_what_an_env_prints_arrives_on_the_programs_own_streams(method: str, tmp_path: Path) -> None:
    deed = ("print('built')", "print('said', flush=True); print('told', file=sys.stderr)")
    result = play([deed], method, tmp_path)
    assert_unharmed(result, tmp_path)
    assert result.stdout.splitlines() == ["built", *["said"] * 5]
    assert result.stderr.splitlines() == ["told"] * 5


def test_t33_spam_on_both_streams_slows_nobody_down_for_good(tmp_path: Path) -> None:
    # Nothing but letters: the streams are read as text.
    spam = "print('x' * 100_000); print('y' * 100_000, file=sys.stderr); sys.stdout.flush(); write(1, b'z' * 5000)"
    result = play([(spam, spam)], "forkserver", tmp_path)
    assert_unharmed(result, tmp_path)
    counts = result.stdout.count("x"), result.stderr.count("y"), result.stdout.count("z")
    assert counts == (6 * 100_000, 6 * 100_000, 6 * 5000)


def test_t33_a_reader_that_is_gone_is_the_envs_own_fault(tmp_path: Path) -> None:
    """As in ``program | head``: the env that prints gets a broken pipe, and is named; the others go on."""
    (tmp_path / "program.py").write_text(
        PROGRAM
        + dedent("""
            class Rude(Mine):
                def act(self):
                    print("x" * 10_000, flush=True)

            reading, writing = os.pipe()
            os.dup2(writing, 1)
            os.close(writing)
            os.close(reading)
            kwargs = [{"tag": i} for i in range(4)]
            with shoal.make_pool(Rude, 4, env_kwargs=kwargs, engine="process", num_workers=2) as pool:
                pool.reset(seed=0)
                try:
                    pool.step([0] * 4)
                except shoal.errors.EnvStepError as error:
                    assert (error.env_ids, type(error.__cause__)) == ((1,), BrokenPipeError), error
                    assert pool.recv(timeout=5).env_id.tolist() == [0, 2, 3]
                    report("unharmed")
        """)
    )
    assert_unharmed(run_python("program.py", "result", cwd=tmp_path), tmp_path)


@pytest.mark.parametrize(("closed", "method"), [("1, 2", "fork"), ("1, 2", "spawn"), ("0, 1, 2", "forkserver")])
def test_t33_a_program_without_streams_has_pools_too(closed: str, method: str, tmp_path: Path) -> None:
    """As a daemon that has closed its streams; its next files and sockets have the numbers 0 to 2."""
    (tmp_path / "program.py").write_text(
        PROGRAM
        + dedent(f"""
            class Rude(Mine):
                def act(self):
                    print("nobody hears this")
                    write(1, b"nor this" * 100)
                    write(2, b"nor this" * 100)

            for fd in ({closed}):
                os.close(fd)
            try:
                run(Rude, {method!r})
                report("unharmed")
            except BaseException as error:
                report(f"{{type(error).__name__}}: {{error}}"[:1000])
        """)
    )
    result = run_python("program.py", "result", cwd=tmp_path)
    assert (tmp_path / "result").exists(), f"the program ended with code {result.returncode}"
    assert (tmp_path / "result").read_text() == "unharmed"
