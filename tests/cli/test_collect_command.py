"""``shoal collect`` as it is typed, and killed."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.collect import load_dataset
from shoal.collect.columns import Counters, rows_of
from shoal.collect.writing import part_seed
from shoal.errors import ArgumentError
from shoal.testing import CountingEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from typer.testing import Result

    from shoal.collect.columns import Columns

SHOAL = (sys.executable, "-m", "shoal")
PART_ROWS = 64  # of what is killed
COUNTING = ("shoal.testing:CountingEnv", "-n", "4", "--engine", "serial", "--seed", "1")


def shoal_collect(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["collect", *map(str, arguments)])


def as_json(*arguments: str | Path) -> dict[str, Any]:
    result = shoal_collect(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return dict(json.loads(result.stdout))


def always_three(obs: np.ndarray) -> np.ndarray:
    return np.full(len(obs), 3)


def never(obs: np.ndarray) -> np.ndarray:
    raise ValueError("not today")


def for_ten_steps(obs: np.ndarray, calls: Iterator[int] = itertools.count()) -> np.ndarray:  # noqa: B008
    if next(calls) == 10:
        raise StopIteration("enough")
    return always_three(obs)


def test_a_dataset_comes_out(tmp_path: Path) -> None:
    told = as_json(*COUNTING, "--steps", "1_000", "--out", tmp_path / "data", "--format", "npz", "--part-rows", "400")
    dataset = load_dataset(tmp_path / "data")
    assert told["rows"] == len(dataset) == 1000
    assert told["parts"] == 3
    assert told["seed"] == dataset.config.seed == 1
    assert dataset.config.env == "shoal.testing:CountingEnv"
    assert told["size_bytes"] == sum(path.stat().st_size for path in (tmp_path / "data").iterdir())


def test_parquet_is_the_default(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    assert as_json(*COUNTING, "--steps", "100", "--out", tmp_path / "data")["format"] == "parquet"
    assert [path.name for path in load_dataset(tmp_path / "data").files] == ["part-00000.parquet"]


def test_the_table_says_where_and_how_fast(tmp_path: Path) -> None:
    result = shoal_collect(*COUNTING, "--steps", "200", "--out", tmp_path / "data", "--format", "npz")
    labels = [line.split("  ")[0] for line in result.stdout.splitlines()]
    assert labels == ["data", "env", "engine", "rows", "speed", "episodes", "mean return", "mean length", "read it"]
    assert str(tmp_path / "data") in result.stdout
    assert "steps/s" in result.stdout


def test_a_policy_and_kwargs_of_ones_own(tmp_path: Path) -> None:
    kwargs = '{"episode_length": 2}'
    arguments = (*COUNTING, "--policy", f"{__name__}:always_three", "--env-kwargs", kwargs, "--format", "npz")
    told = as_json(*arguments, "--steps", "60", "--out", tmp_path / "data")
    assert told["mean_length"] == 2.0
    dataset = load_dataset(tmp_path / "data")
    assert (dataset.to_numpy()["action"] == 3).all()
    assert dataset.config.policy.endswith(":always_three")
    assert dataset.config.env_kwargs == {"episode_length": 2}


def test_resume_and_overwrite(tmp_path: Path) -> None:
    arguments = (*COUNTING, "--out", tmp_path / "data", "--format", "npz", "--part-rows", "50")
    as_json(*arguments, "--steps", "100", "--resume")  # nothing there yet: it begins
    told = as_json(*arguments, "--steps", "150", "--resume")
    assert (told["rows"], told["new_rows"]) == (150, 50)
    refused = shoal_collect(*arguments, "--steps", "100")
    assert refused.exit_code == 2
    assert "there is a dataset already, of 150 rows" in refused.stderr
    assert "--resume" in refused.stderr
    assert as_json(*arguments, "--steps", "100", "--overwrite")["rows"] == 100


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([*COUNTING, "--resume", "--overwrite"], "one of them, not both"),
        ([*COUNTING, "--format", "csv"], "--format: expected one of"),
        ([*COUNTING, "--env-kwargs", "size=3"], "--env-kwargs: not JSON"),
        ([*COUNTING, "--env-kwargs", "[3]"], "--env-kwargs: expected a JSON object"),
        ([*COUNTING, "--format", "minari"], "ends with a version"),
        ([*COUNTING, "--policy", "greedy"], "--policy: expected module:callable"),
        (["NoSuch-v0"], "NoSuch"),
        (["shoal.testing:FaultEnv", "-n", "2", "--engine", "serial", "--format", "npz"], "step failed in env"),
    ],
)
def test_errors_are_one_line_on_stderr(arguments: list[str], told: str, tmp_path: Path) -> None:
    result = shoal_collect(*arguments, "--out", tmp_path / "data")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("shoal: ")
    assert result.stderr.count("\n") == 1
    assert told in result.stderr


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("format", ["parquet", "npz"])
def test_a_full_disk_is_told_in_one_line_and_complete_parts_stay(format: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    arguments = (*COUNTING, "--format", format, "--out", tmp_path / "data")
    as_json(*arguments, "--steps", "50", "--part-rows", "50")
    before = load_dataset(tmp_path / "data").to_numpy()
    with files_of_at_most(4000):
        result = shoal_collect(*arguments, "--steps", "100", "--resume")
    assert (result.exit_code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith("shoal: 50 rows in 1 part are complete")
    assert "cannot be written (File too large)" in second
    after = load_dataset(tmp_path / "data").to_numpy()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["_dataset.json", f"part-00000.{format}"]


@pytest.mark.slow  # for its imports
def test_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    out = tmp_path / "counting-v0"
    arguments = ("shoal.testing:DictTupleEnv", "-n", "2", "--engine", "serial", "--seed", "1", "--steps", "53")
    told = as_json(*arguments, "--out", out, "--format", "minari", "--part-rows", "30")
    assert told["rows"] == 53
    assert [path.name for path in out.iterdir()] == ["data"]
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = minari.load_dataset("counting-v0")
    assert dataset.total_steps == 53
    as_json(*arguments, "--out", tmp_path / "rows", "--format", "npz", "--part-rows", "30")
    rows = load_dataset(tmp_path / "rows").to_numpy()
    episodes = list(dataset.iterate_episodes())
    assert sum(len(episode) for episode in episodes) == 53
    assert all(episode.terminations[-1] or episode.truncations[-1] for episode in episodes)
    first = (rows["env_id"] == 0) & (rows["episode"] == 0)
    assert np.array_equal(episodes[0].observations["camera"][:-1], rows["obs.camera"][first])
    assert np.array_equal(episodes[0].observations["camera"][1:], rows["next_obs.camera"][first])
    assert np.array_equal(episodes[0].actions["mix"][1], rows["action.mix.1"][first])
    refused = shoal_collect(*arguments, "--out", out, "--format", "minari", "--resume")
    assert "a Minari dataset already" in refused.stderr
    assert as_json(*arguments, "--out", out, "--format", "minari", "--overwrite")["rows"] == 53


@pytest.mark.slow  # for its imports
def test_minari_in_a_folder_that_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import minari

    monkeypatch.chdir(tmp_path)
    result = shoal_collect(*COUNTING, "--steps", "50", "--format", "minari", "--out", "data/counting-v0")
    assert (result.exit_code, result.stderr) == (0, "")
    assert f"MINARI_DATASETS_PATH={tmp_path / 'data'}," in result.stdout
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "data"))
    assert minari.load_dataset("counting-v0").total_steps == 50


def test_a_run_that_failed_before_its_first_part_is_not_in_the_way(tmp_path: Path) -> None:
    arguments = (*COUNTING, "--steps", "60", "--format", "npz", "--out", tmp_path / "data")
    failed = shoal_collect(*arguments, "--policy", f"{__name__}:never")
    assert failed.exit_code == 2
    assert len(load_dataset(tmp_path / "data")) == 0
    assert as_json(*arguments)["rows"] == 60
    assert shoal_collect(*arguments).exit_code == 2, "now there is something to lose"


def test_what_was_complete_when_the_policy_failed_is_told(tmp_path: Path) -> None:
    name, size = f"{__name__}:for_ten_steps", ("--steps", "90", "--part-rows", "30")
    result = shoal_collect(*COUNTING, *size, "--format", "npz", "--out", tmp_path / "data", "--policy", name)
    assert (result.exit_code, result.stdout) == (2, "")
    first, second = result.stderr.splitlines()
    assert first.startswith("shoal: 30 rows in 1 part are complete")
    assert second.startswith(f"shoal: --policy: '{name}' raised StopIteration: enough ({__file__}, line ")


def test_an_old_dataset_is_not_told_as_the_new_one(tmp_path: Path) -> None:
    arguments = (*COUNTING, "--steps", "60", "--format", "npz", "--out", tmp_path / "data")
    as_json(*arguments)
    result = shoal_collect(*arguments, "--overwrite", "--policy", f"{__name__}:never")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[0] == f"shoal: the dataset in {tmp_path / 'data'} is as it was"
    assert len(load_dataset(tmp_path / "data")) == 60


# ---------------------------------------------------------------------- killed


def start(folder: Path, format: str) -> subprocess.Popen[bytes]:
    steps = ("--steps", "1_000_000_000", "--part-rows", str(PART_ROWS))
    command = [*SHOAL, "collect", *COUNTING, *steps, "--format", format, "--out", str(folder), "--resume", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def wait_for_more_than(parts: int, folder: Path, running: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end and running.poll() is None:
        # Not by the names of files: a kill may leave a whole part that is not listed.
        if (folder / "_dataset.json").exists() and len(load_dataset(folder).parts) > parts:
            return
        time.sleep(0.01)
    raise AssertionError(f"no part was written: {running.communicate()}")


class Expected:
    """The parts that the seed determines, collected in this process when they are asked for."""

    def __init__(self, pool: shoal.Pool) -> None:
        self._pool, self._parts, self._next_episode = pool, [], np.zeros(pool.num_envs, np.int32)

    def part(self, number: int) -> Columns:
        while len(self._parts) <= number:
            collector = shoal.Collector(self._pool, seed=part_seed(1, len(self._parts)))
            rows = rows_of(collector.collect(PART_ROWS), Counters(self._next_episode), PART_ROWS).columns
            np.maximum.at(self._next_episode, rows["env_id"], rows["episode"] + 1)
            self._parts.append(rows)
        return self._parts[number]


def verified_parts(folder: Path, expected: Expected) -> int:
    """How many parts there are, each of which has been read and is what the seed says."""
    try:
        dataset = load_dataset(folder)
    except ArgumentError:
        assert not list(folder.glob("part-*")), "parts, and no dataset that lists them"
        return 0
    for number, rows in enumerate(dataset):
        told = expected.part(number)
        assert list(rows) == list(told)
        for name, values in told.items():
            assert np.array_equal(rows[name], values), f"{name} of part {number}"
    return len(dataset.parts)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("format", ["parquet", "npz"])
def test_killed_twenty_times_it_is_always_the_beginning_of_the_dataset(
    format: str, tmp_path: Path, make_pool: Callable[..., shoal.Pool]
) -> None:
    """Each kill is of a run that resumes what the last one has left."""
    chance = random.Random(7)
    expected = Expected(make_pool(CountingEnv, 4, engine="serial", autoreset="same_step"))
    folder, known = tmp_path / "data", 0
    for kill in range(20):
        running = start(folder, format)
        try:
            if kill % 5 != 4:  # else at any time since it started, before the first part as well
                wait_for_more_than(known, folder, running)
            time.sleep(chance.uniform(0.0, 0.1 if kill % 5 != 4 else 1.0))
        finally:
            running.send_signal(signal.SIGKILL)
            stderr = running.communicate()[1]
        assert (running.returncode, stderr) == (-signal.SIGKILL, b"")
        before, known = known, verified_parts(folder, expected)
        assert known >= before
    assert known >= 16, "one at least for every run that was waited for"


@pytest.mark.slow
def test_ctrl_c_says_what_is_there(tmp_path: Path) -> None:
    running = start(tmp_path / "data", "npz")
    try:
        wait_for_more_than(3, tmp_path / "data", running)
        running.send_signal(signal.SIGINT)
        stderr = running.communicate(timeout=20)[1].decode()
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 130
    assert "rows in" in stderr
    assert "--resume goes on from there" in stderr
    assert stderr.endswith("shoal: interrupted\n")
    assert not [name for name in os.listdir(tmp_path / "data") if name.startswith(".")]
    assert len(load_dataset(tmp_path / "data")) >= 3 * PART_ROWS


def test_help_has_every_option() -> None:
    text = shoal_collect("--help").stdout
    for option in ("out", "steps", "policy", "seed", "engine", "format", "part-rows", "resume", "overwrite", "json"):
        assert f"--{option}" in text
    assert shoal.collect.load_dataset is load_dataset
