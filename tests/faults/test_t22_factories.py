"""T22: env factories of every kind reach their workers from wherever the user's code runs, or the error names what
cannot. Each case is an interpreter of its own.
"""

from __future__ import annotations

import sys
from textwrap import dedent, indent
from typing import TYPE_CHECKING

import pytest
from fault_cases import run_python

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

# A worker that ran the script again would print its first line again. There is no `if __name__ == "__main__"`.
SCRIPT = dedent("""
    import functools, gymnasium, sys
    import shoal
    from shoal.testing import CountingEnv

    print("script runs")
    offset = 40

    class Broken(Exception):
        pass

    class Mine(CountingEnv):
        def __init__(self, tag=1):
            super().__init__(tag=tag + offset, episode_length=50)

        def step(self, action):
            if action == 4:
                raise Broken("on purpose")
            return super().step(action)

    class Wrapped(gymnasium.Wrapper):
        def step(self, action):
            obs, reward, *rest = self.env.step(action)
            return obs, reward + offset, *rest

    def closure(tag):
        def make():
            return Mine(tag)
        return make

    class Maker:
        def __init__(self, tag):
            self.tag = tag
        def __call__(self):
            return Mine(self.tag)
        def method(self):
            return Mine(self.tag + 1)
        @staticmethod
        def static():
            return Mine(9)

    def function():
        return Mine(2)

    def local_class():
        class Local(Mine):
            pass
        return Local

    factories = [Mine, function, lambda: Mine(3), closure(4), functools.partial(Mine, 5), Maker(6), Maker(6).method,
                 functools.partial(closure(8)), Maker.static, local_class()]
    for method in METHODS:
        options = {"engine": "process", "num_workers": 2, "start_method": method}
        with shoal.make_pool(factories, **options) as pool:
            tags = [int(tag) - offset for tag in pool.reset(seed=0).obs[:, 1]]
            try:
                pool.step([4] + [0] * 9)
            except shoal.errors.EnvStepError as error:
                told = error.env_ids, "Broken: on purpose" in str(error), "in step" in error.remote_traceback
        with shoal.make_pool(Mine, 2, env_kwargs={"tag": 7}, wrappers=[Wrapped], **options) as pool:
            pool.reset(seed=0)
            reward = pool.step([0, 0]).reward.tolist()
        print(method, tags, told, reward)
""")
METHODS = ("fork", "forkserver", "spawn")
SAID = "script runs\n" + "".join(
    f"{method} [1, 2, 3, 4, 5, 6, 7, 8, 9, 1] ((0,), True, True) [41.0, 41.0]\n" for method in METHODS
)


def as_command(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_python("-c", script, cwd=folder)


def from_stdin(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_python("-", input=script, cwd=folder)


def as_file(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return run_python("script.py", cwd=folder)


def as_module(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return run_python("-m", "script", cwd=folder)


def as_notebook(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Each statement is a cell, executed in the namespace of ``__main__``, which has no file, as IPython does it."""
    cells = dedent("""
        import ast, linecache, sys
        main = sys.modules["__main__"]
        assert not hasattr(main, "__file__")
        for number, cell in enumerate(ast.parse(SOURCE).body):
            exec(compile(ast.Module([cell], []), f"<ipython-input-{number}>", "exec"), main.__dict__)
    """)
    return run_python("-c", f"SOURCE = {script!r}\n{cells}", cwd=folder)


every_way = pytest.mark.parametrize("way", [as_command, from_stdin, as_file, as_module, as_notebook])


@pytest.mark.slow
@every_way
def test_t22_factories_of_every_kind_work_however_the_script_is_run(
    way: Callable[[str, Path], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    # From 3.12 on Python warns when a process with threads forks, and numeric libraries start some.
    script = (
        f"import warnings; warnings.filterwarnings('ignore', message='.*use of fork')\nMETHODS = {METHODS}\n{SCRIPT}"
    )
    result = way(script, tmp_path)
    assert (result.stderr, result.stdout, result.returncode) == ("", SAID, 0)


# What is tried, and the path in the error.
LOCKED = {
    "lambda: [lock, Mine()][1]": "globals.lock (lock)",
    "uses_global": "globals.lock (lock)",
    "closure(threading.Lock())": "closure.held (lock)",
    "functools.partial(Mine, tag=threading.Lock())": "tag (lock)",
    "functools.partial(Mine, [threading.Lock()])": "args[0].[0] (lock)",
    "Maker(threading.Lock())": "held (lock)",
    "lambda: gymnasium.make(handle.name)": "globals.handle (TextIOWrapper)",
}
LOCK_SCRIPT = dedent("""
    import functools, gymnasium, threading
    import shoal
    from shoal.testing import CountingEnv

    lock = threading.Lock()
    handle = open("/dev/null", "w")

    class Mine(CountingEnv):
        def __init__(self, tag=1):
            super().__init__(tag=tag, episode_length=50)

    class Reaches(Mine):
        def step(self, action):
            with lock:
                return super().step(action)

    def uses_global():
        with lock:
            return Mine()

    def closure(held):
        def make():
            with held:
                return Mine()
        return make

    class Maker:
        def __init__(self, held):
            self.held = held
        def __call__(self):
            return Mine()
        def method(self):
            return Mine()

    def attempt(factory):
        try:
            shoal.make_pool(factory, 2, engine="process", num_workers=1).close()
        except shoal.errors.ShippingError as error:
            print(error)
""")


@pytest.mark.slow
@pytest.mark.parametrize("way", [as_file, as_notebook])
def test_t22_what_cannot_be_sent_is_named_by_its_path(
    way: Callable[[str, Path], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    calls = "".join(f"attempt({factory})\n" for factory in LOCKED)
    result = way(f"{LOCK_SCRIPT}{calls}handle.close()\n", tmp_path)
    assert (result.stderr, result.returncode) == ("", 0)
    lines = result.stdout.splitlines()
    assert len(lines) == len(LOCKED), result.stdout
    for line, (factory, path) in zip(lines, LOCKED.items(), strict=True):
        assert f".{path}" in line, f"{factory}: {line}"
        assert "env_fn" in line
        assert "Make the object inside the factory" in line
        assert "engine='thread'" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "path"),
    [("Reaches", "step.globals.lock (lock)"), ("Maker(threading.Lock()).method", "held (lock)")],
    ids=["method of a class", "bound method"],
)
def test_t22_what_a_method_holds_on_to_is_named_too(factory: str, path: str, tmp_path: Path) -> None:
    result = as_file(f"{LOCK_SCRIPT}handle.close()\nattempt({factory})\n", tmp_path)
    assert (result.stderr, result.returncode) == ("", 0)
    assert path in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", [as_file, as_command])
def test_t22_a_module_beside_the_script_is_found_by_its_workers(
    way: Callable[[str, Path], subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "beside.py").write_text("from shoal.testing import CountingEnv\nclass Mine(CountingEnv): pass\n")
    later = tmp_path / "later"
    later.mkdir()
    (later / "added.py").write_text("from shoal.testing import CountingEnv\nclass Late(CountingEnv): pass\n")
    script = dedent(f"""
        import sys
        import shoal
        import beside

        def tags(kind, method):
            with shoal.make_pool(kind, 2, engine="process", num_workers=2, start_method=method,
                                 env_kwargs={{"tag": 7}}) as pool:
                return pool.reset(seed=0).obs[:, 1].astype(int).tolist()

        print([tags(beside.Mine, method) for method in ("forkserver", "spawn")])
        sys.path.append({str(later)!r})
        import added
        print([tags(added.Late, method) for method in ("forkserver", "spawn")])
    """)
    result = way(script, tmp_path)
    assert (result.stderr, result.stdout, result.returncode) == ("", "[[7, 7], [7, 7]]\n" * 2, 0)


@pytest.mark.slow
def test_t22_a_class_defined_again_in_a_later_cell_is_the_one_that_runs(tmp_path: Path) -> None:
    body = "super().__init__(tag={tag}, episode_length=50)"
    cell = "class Mine(CountingEnv):\n" + indent("def __init__(self):\n" + indent(body, "    "), "    ") + "\n"
    script = "import shoal\nfrom shoal.testing import CountingEnv\n" + "".join(
        cell.format(tag=tag)
        + "with shoal.make_pool(Mine, 2, engine='process', num_workers=2) as pool:\n"
        + "    print(pool.reset(seed=0).obs[:, 1].astype(int).tolist())\n"
        for tag in (1, 2)
    )
    result = as_notebook(script, tmp_path)
    assert (result.stderr, result.stdout, result.returncode) == ("", "[1, 1]\n[2, 2]\n", 0)


@pytest.mark.slow
def test_t22_an_error_in_a_cell_shows_the_line_of_the_cell(tmp_path: Path) -> None:
    """The traceback of an env in a notebook has the cell's name and line, though no worker has its text."""
    script = dedent("""
        import shoal
        from shoal.testing import CountingEnv
        class Mine(CountingEnv):
            def reset(self, **kwargs):
                raise ValueError("in the cell")
        with shoal.make_pool(Mine, 1, engine="process") as pool:
            try:
                pool.reset(seed=0)
            except shoal.errors.EnvResetError as error:
                print(type(error.__cause__).__name__, error.env_ids)
                print(error.remote_traceback)
    """)
    result = as_notebook(script, tmp_path)
    assert (result.stderr, result.returncode) == ("", 0)
    assert result.stdout.startswith("ValueError (0,)\n")
    assert '"<ipython-input-2>", line 6, in reset' in result.stdout, result.stdout


def test_t22_this_interpreter_is_the_one_that_runs_the_scripts(tmp_path: Path) -> None:
    """The scripts test this very shoal, and not one installed elsewhere."""
    result = as_file("import shoal, sys\nprint(sys.executable, shoal.__file__)", tmp_path)
    import shoal

    assert result.stdout == f"{sys.executable} {shoal.__file__}\n"
