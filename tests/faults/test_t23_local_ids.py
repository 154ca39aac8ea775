"""T23: an id that only the user's program has registered works in every start method."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from fault_cases import run_python

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ["fork", "forkserver", "spawn"]

SCRIPT = dedent("""
    import functools, sys, warnings
    import gymnasium, shoal
    from gymnasium.envs.registration import WrapperSpec
    from shoal.testing import CountingEnv
    import beside  # registers Beside-v0

    warnings.filterwarnings("ignore", message=".*use of fork")

    class Mine(CountingEnv):
        def __init__(self, tag=1, render_mode=None):
            super().__init__(tag=tag, episode_length=50, render_mode=render_mode)

    class Outer(Mine):
        def __init__(self, **kwargs):
            self.inner = gymnasium.make("ByClass-v0", tag=8)
            super().__init__(tag=self.inner.unwrapped.tag)

    class Louder(gymnasium.RewardWrapper):
        def reward(self, reward):
            return reward + 100

    gymnasium.register("ByClass-v0", entry_point=Mine, max_episode_steps=3)
    gymnasium.register("ByLambda-v0", entry_point=lambda **kwargs: Mine(**kwargs), kwargs={"tag": 2})
    gymnasium.register("space/ByText-v0", entry_point="beside:Beside", kwargs={"tag": 3})
    gymnasium.register("Wrapped-v0", entry_point=Mine, kwargs={"tag": 4},
                       additional_wrappers=(WrapperSpec("louder", "__main__:Louder", {}),))
    gymnasium.register("Outer-v0", entry_point=Outer)
    gymnasium.register("ByMain-v0", entry_point=f"{__name__}:Mine", kwargs={"tag": 7})

    def look(env, **options):
        with shoal.make_pool(env, 2, engine="process", num_workers=1, start_method=sys.argv[1], **options) as pool:
            tags = pool.reset(seed=0).obs[:, 1].astype(int).tolist()
            steps = [pool.step([0, 0]) for _ in range(3)]
            return tags, [float(batch.reward[0]) for batch in steps], [bool(batch.truncated[0]) for batch in steps]

    print(*look(CASE))
""")
BESIDE = dedent("""
    import gymnasium
    from shoal.testing import CountingEnv

    class Beside(CountingEnv):
        def __init__(self, tag=5, render_mode=None):
            super().__init__(tag=tag, episode_length=50)

    gymnasium.register("Beside-v0", entry_point=Beside)
""")
REWARDS = "[1.0, 2.0, 3.0]"
ENDLESS = "[False, False, False]"

# What is given to the pool, and what comes of it.
CASES = {
    '"ByClass-v0"': f"[1, 1] {REWARDS} [False, False, True]",
    '"ByClass-v0", env_kwargs={"tag": 9}, max_episode_steps=2': "[9, 9] [1.0, 2.0, 0.0] [False, True, False]",
    '"ByLambda-v0"': f"[2, 2] {REWARDS} {ENDLESS}",
    '"space/ByText-v0"': f"[3, 3] {REWARDS} {ENDLESS}",
    '"Beside-v0"': f"[5, 5] {REWARDS} {ENDLESS}",
    'gymnasium.spec("ByClass-v0")': f"[1, 1] {REWARDS} [False, False, True]",
}
# Here the id is looked up in the worker, which has to know what the program has registered.
INSIDE = {
    'lambda: gymnasium.make("ByClass-v0")': f"[1, 1] {REWARDS} [False, False, True]",
    'functools.partial(gymnasium.make, "ByLambda-v0", tag=6)': f"[6, 6] {REWARDS} {ENDLESS}",
    '"Outer-v0"': f"[8, 8] {REWARDS} {ENDLESS}",
}
# The registration itself names something in the program.
BY_NAME = {
    '"ByMain-v0"': f"[7, 7] {REWARDS} {ENDLESS}",
    '"Wrapped-v0"': f"[4, 4] [101.0, 102.0, 103.0] {ENDLESS}",
}


def run(cases: dict[str, str], method: str, folder: Path) -> None:
    (folder / "beside.py").write_text(BESIDE)
    *setup, call = SCRIPT.rstrip().splitlines()
    calls = [call.replace("CASE", case) for case in cases]
    (folder / "script.py").write_text("\n".join([*setup, *calls]))
    result = run_python("script.py", method, cwd=folder)
    said = "".join(f"{line}\n" for line in cases.values())
    assert (result.stderr, result.stdout, result.returncode) == ("", said, 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_t23_a_locally_registered_id_works(method: str, tmp_path: Path) -> None:
    run(CASES, method, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "case"), [("fork", '"Outer-v0"'), ("spawn", '"Outer-v0"'), *(("forkserver", case) for case in INSIDE)]
)
def test_t23_a_locally_registered_id_can_be_made_inside_a_worker(method: str, case: str, tmp_path: Path) -> None:
    run({case: INSIDE[case]}, method, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "case"), [("fork", '"ByMain-v0"'), *(("forkserver", case) for case in BY_NAME)])
def test_t23_a_registration_may_name_what_is_in_the_script_itself(method: str, case: str, tmp_path: Path) -> None:
    run({case: BY_NAME[case]}, method, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver"])
def test_t23_a_registration_that_cannot_travel_hinders_nobody(method: str, tmp_path: Path) -> None:
    """What cannot be sent, or not be unpacked, is missed only by those who make it."""
    lock = dedent("""
        import threading
        LOCK = threading.Lock()
        class Broken:
            def __reduce__(self):
                return int, ("not a number",)
        gymnasium.register("Locked-v0", entry_point=lambda: LOCK)
        gymnasium.register("LockInside-v0", entry_point="beside:Beside", kwargs={"lock": LOCK})
        gymnasium.register("Broken-v0", entry_point=lambda broken=Broken(): Mine())
        gymnasium.register("NoSuchName-v0", entry_point="__main__:NoSuchName")
    """)
    (tmp_path / "beside.py").write_text(BESIDE)
    *setup, call = SCRIPT.rstrip().splitlines()
    good = [*INSIDE, *BY_NAME]
    bad = [f'lambda: gymnasium.make("{name}-v0")' for name in ("Locked", "LockInside", "Broken")]
    attempts = [f"    {case}," for case in bad]
    script = [*setup, lock, *(call.replace("CASE", case) for case in good), "for env in [", *attempts, "]:"]
    script += [
        "    try: look(env)",
        "    except shoal.errors.EnvConstructError as error: print('NameNotFound' in str(error))",
    ]
    (tmp_path / "script.py").write_text("\n".join(script))
    result = run_python("script.py", method, cwd=tmp_path)
    said = "".join(f"{line}\n" for line in [*INSIDE.values(), *BY_NAME.values(), *["True"] * 3])
    assert (result.stderr, result.stdout, result.returncode) == ("", said, 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["forkserver"])
def test_t23_an_id_that_nobody_knows_is_named(method: str, tmp_path: Path) -> None:
    script = dedent("""
        import sys, warnings
        import gymnasium, shoal
        warnings.filterwarnings("ignore", message=".*use of fork")
        for env in ("Nowhere-v0", lambda: gymnasium.make("Nowhere-v0")):
            try:
                shoal.make_pool(env, 2, engine="process", num_workers=2, start_method=sys.argv[1])
            except shoal.errors.ShoalError as error:
                print(type(error).__name__, getattr(error, "env_ids", ()), "Nowhere" in str(error))
    """)
    result = run_python("-c", script, method, cwd=tmp_path)
    said = "ArgumentError () True\nEnvConstructError (0, 1) True\n"
    assert (result.stderr, result.stdout, result.returncode) == ("", said, 0)
