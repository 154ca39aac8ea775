"""What is left behind is found and named; what is cleaned up in time is not."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal.engines.kernel.shelf import cache_folder
from shoal.testing import leaks, leftovers, no_leftovers

if TYPE_CHECKING:
    from collections.abc import Callable

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
HAS_PROC = Path("/proc/self/stat").exists()

# Forking beside the threads of a parallel test run is safe here: the children only sleep.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def test_nothing_left_costs_no_wait() -> None:
    began = time.monotonic()
    with no_leftovers(grace_s=30):
        pass
    assert time.monotonic() - began < 5


def test_a_child_is_found_and_named() -> None:
    children: list[subprocess.Popen[bytes]] = []
    with pytest.raises(AssertionError) as caught, no_leftovers(grace_s=0.1):
        children.append(subprocess.Popen(SLEEP))
    children[0].kill()
    children[0].wait()
    assert str(caught.value).startswith("left behind, 0.1 s after the end:\nchild process")
    assert f"child process {children[0].pid}: " in str(caught.value)
    assert "time.sleep(60)" in str(caught.value)


@pytest.mark.skipif(not HAS_PROC, reason="only /proc tells")
def test_a_child_that_was_not_reaped_is_found() -> None:
    children: list[subprocess.Popen[bytes]] = []
    with pytest.raises(AssertionError, match="ended, but not reaped"), no_leftovers(grace_s=1):
        children.append(subprocess.Popen([sys.executable, "-S", "-c", ""]))
    children[0].wait()


@pytest.mark.skipif(not HAS_PROC, reason="only /proc tells")
def test_a_grandchild_is_found() -> None:
    code = f"import subprocess; p = subprocess.Popen({SLEEP!r}); print(p.pid, flush=True); p.wait()"
    before = leftovers()
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        pids = {pid for pid, _ in leftovers().since(before).children}
        assert pids == {child.pid, grandchild}
        os.kill(grandchild, 9)


def test_a_thread_is_found_and_named() -> None:
    stop = threading.Event()
    with pytest.raises(AssertionError, match="thread dawdler"), no_leftovers(grace_s=0.1):
        threading.Thread(target=stop.wait, name="dawdler").start()
    stop.set()


def test_what_goes_away_within_the_grace_is_no_leftover() -> None:
    with no_leftovers(grace_s=10):
        threading.Thread(target=time.sleep, args=(0.2,)).start()


def test_an_open_descriptor_is_found() -> None:
    ends: list[int] = []
    with pytest.raises(AssertionError, match=r"file descriptor \d+"), no_leftovers(grace_s=0.1):
        ends += os.pipe()
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("folder", [tempfile.gettempdir(), "/dev/shm"], ids=["temporary", "shared memory"])
@pytest.mark.parametrize(("name", "prefixes"), [("shoal", ("shoal",)), ("other", ("shoal", "other"))])
def test_a_file_with_our_name_is_found(folder: str, name: str, prefixes: tuple[str, ...]) -> None:
    if not os.path.isdir(folder):
        pytest.skip(f"there is no {folder}")
    path = Path(folder) / f"{name}-leak-test-{os.getpid()}"
    with pytest.raises(AssertionError, match=f"file {path}"), no_leftovers(grace_s=0.1, prefixes=prefixes):
        path.touch()
    path.unlink()


def test_a_file_with_another_name_is_not_ours() -> None:
    with no_leftovers(grace_s=0.1), tempfile.NamedTemporaryFile(prefix="other") as file:
        before = leftovers()
        assert file.name not in before.files


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("SHOAL_CACHE_DIR", "/proc/nowhere"),
        ("SHOAL_CACHE_DIR", "shoal-chosen"),
        ("SHOAL_CACHE_DIR", "shoal-chosen/kernels"),
        ("XDG_CACHE_HOME", "."),
    ],
)
def test_the_folder_of_compiled_envs_is_no_leftover(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("SHOAL_CACHE_DIR", raising=False)
    monkeypatch.setenv(name, str(tmp_path / place))
    with no_leftovers(grace_s=0):
        folder = cache_folder()
    assert folder.is_relative_to(tmp_path)


def test_ignored_things_are_not_leftovers() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="monitor")
    with no_leftovers(grace_s=0.1, ignore=("thread monitor",)):
        thread.start()
    stop.set()
    thread.join()


def test_an_error_in_the_block_goes_on_with_a_note() -> None:
    stop = threading.Event()

    def leak_and_raise() -> None:
        threading.Thread(target=stop.wait, name="dawdler").start()
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught, no_leftovers(grace_s=0.1):
        leak_and_raise()
    stop.set()
    assert "thread dawdler" in caught.value.__notes__[0]


def test_an_error_in_a_clean_block_gets_no_note() -> None:
    with pytest.raises(KeyError) as caught, no_leftovers(grace_s=0.1):
        raise KeyError("mine")
    assert not hasattr(caught.value, "__notes__")


def test_garbage_in_a_cycle_is_no_leak() -> None:
    class Holder:
        def __init__(self) -> None:
            self.fds = os.pipe()
            self.me = self

        def __del__(self) -> None:
            for fd in self.fds:
                os.close(fd)

    with no_leftovers(grace_s=0.1):
        Holder()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_joined_workers_leave_nothing_whatever_the_start_method(method: str) -> None:
    # In a process of its own, so that the fork server and the resource tracker start inside the block.
    code = f"""
import multiprocessing, time
from shoal.testing import leftovers, no_leftovers

if __name__ == "__main__":
    context = multiprocessing.get_context({method!r})
    with no_leftovers():
        lock = context.Lock()
        process = context.Process(target=time.sleep, args=(0,))
        process.start()
        process.join()
        process.close()
        del lock
    before = leftovers()
    process = context.Process(target=time.sleep, args=(60,))
    process.start()
    found = leftovers().since(before)
    assert process.pid in {{pid for pid, _ in found.children}}, found
    process.kill()
    process.join()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def hide_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_PROC", Path("/no/such/place"))


def hide_proc_and_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_proc(monkeypatch)
    monkeypatch.setitem(sys.modules, "psutil", None)


@pytest.mark.parametrize("hide", [hide_proc, hide_proc_and_psutil])
def test_without_proc_children_are_found_all_the_same(
    hide: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch)
    before = leftovers()
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    assert f"child process {process.pid}" in str(leftovers().since(before))
    process.kill()
    process.join()
    process.close()
    assert not leftovers().since(before)


@pytest.mark.slow
def test_as_a_fixture_it_fails_the_leaking_test_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\nfrom shoal import testing\nguard = pytest.fixture(autouse=True)(testing.leak_guard)\n"
    )
    (tmp_path / "test_it.py").write_text("import os\ndef test_leaks(): os.pipe()\ndef test_does_not(): pass\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": str(Path(leaks.__file__).parents[2])}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=env)
    assert "2 passed, 1 error" in result.stdout
    assert "left behind, 2.0 s after the end" in result.stdout
    assert "ERROR test_it.py::test_leaks" in result.stdout
