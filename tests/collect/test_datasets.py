"""Datasets on disk: what is in them, and what is left of them when something goes wrong at any moment."""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import shoal
from shoal.collect import load_dataset, write_dataset
from shoal.collect.columns import Counters, rows_of
from shoal.collect.folder import sole_writer
from shoal.collect.formats import draft_of
from shoal.collect.identity import name_of
from shoal.collect.writing import part_seed
from shoal.errors import ArgumentError, BackendUnavailable, StateError
from shoal.testing import CountingEnv, DictTupleEnv, FaultEnv, SampleEnv

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.collect.columns import Columns

FORMATS = ["parquet", "npz"]


@pytest.fixture(params=FORMATS)
def format(request: pytest.FixtureRequest) -> str:
    """Both formats in turn."""
    if request.param == "parquet":
        pytest.importorskip("pyarrow.parquet")
    return str(request.param)


def counting(num_envs: int = 3, **options: Any) -> shoal.Pool:
    return shoal.make_pool(
        [lambda i=i: CountingEnv(tag=i, episode_length=3 + i) for i in range(num_envs)], engine="serial", **options
    )


def write(folder: Path, steps: int, *, num_envs: int = 3, **options: Any) -> shoal.collect.Written:
    with counting(num_envs) as pool:
        return write_dataset(pool, folder, steps=steps, **{"seed": 4, "format": "npz", "part_rows": 20, **options})


def same(a: Columns, b: Columns) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def leaves_by_name(prefix: str, value: Any) -> Columns:
    """The columns that a nested value should have."""
    if isinstance(value, dict):
        return {k: v for key, child in value.items() for k, v in leaves_by_name(f"{prefix}.{key}", child).items()}
    if isinstance(value, tuple):
        return {k: v for i, child in enumerate(value) for k, v in leaves_by_name(f"{prefix}.{i}", child).items()}
    return {prefix: value}


# ---------------------------------------------------------------------- what is in them


@pytest.mark.parametrize(
    ("make", "mode"),
    [(CountingEnv, "next_step"), (CountingEnv, "same_step"), (CountingEnv, "disabled"), (DictTupleEnv, "same_step")],
)
def test_rows_are_the_collectors_transitions(
    make: Callable[[], gym.Env], mode: str, format: str, tmp_path: Path
) -> None:
    with shoal.make_pool(make, 3, engine="serial", autoreset=mode) as pool:
        write_dataset(pool, tmp_path / "data", steps=60, seed=4, format=format, part_rows=35)
    found = load_dataset(tmp_path / "data")
    assert [part.rows for part in found.parts] == [35, 25]
    for number, rows in enumerate(found):
        with shoal.make_pool(make, 3, engine="serial", autoreset=mode) as pool:
            told = shoal.Collector(pool, seed=found.parts[number].seed).collect(40).transitions()
        expected = {
            "env_id": told.env_id,
            **leaves_by_name("obs", told.obs),
            **leaves_by_name("action", told.action),
            "reward": told.reward,
            **leaves_by_name("next_obs", told.next_obs),
            "terminated": told.terminated,
            "truncated": told.truncated,
        }
        assert set(rows) - set(expected) == {"episode", "step"}
        for name, values in expected.items():
            assert rows[name].dtype == values.dtype
            assert np.array_equal(rows[name], values[: len(rows["reward"])]), name


def test_both_formats_hold_the_same(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow.parquet")
    for name in FORMATS:
        with shoal.make_pool(DictTupleEnv, 3, engine="serial") as pool:
            write_dataset(pool, tmp_path / name, steps=50, seed=4, format=name, part_rows=30)
    parquet, npz = (load_dataset(tmp_path / name) for name in FORMATS)
    assert same(parquet.to_numpy(), npz.to_numpy())
    assert parquet.columns == npz.columns
    assert "obs.inner.pixels" in parquet.columns
    assert "obs.pair.0" in parquet.columns
    assert parquet.columns["obs.camera"].shape == (2, 3)


def test_parquet_is_for_everyone(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    write(tmp_path, 50, format="parquet")
    draft_of(tmp_path / "part-00003.parquet").write_bytes(b"half of")
    dataset = load_dataset(tmp_path)
    table = parquet.read_table(tmp_path)
    assert table.equals(parquet.read_table(dataset.files))
    assert table.schema.field("obs").type == pa.list_(pa.field("element", pa.float64()), dataset.columns["obs"].size)
    assert table.column("reward").to_pylist() == dataset.to_numpy()["reward"].tolist()
    found = pytest.importorskip("pyarrow.dataset").dataset(tmp_path, format="parquet")
    assert [Path(file) for file in found.files] == dataset.files
    assert found.to_table().equals(table)


def test_the_same_rows_make_the_same_file(tmp_path: Path, format: str) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, 40, format=format)
    files = [(tmp_path / name / f"part-00001.{format}").read_bytes() for name in ("one", "two")]
    if format == "parquet":  # a zip holds the time of day
        assert files[0] == files[1]


def test_episodes_and_steps_are_numbered(tmp_path: Path) -> None:
    write(tmp_path, 100, num_envs=2)
    rows = load_dataset(tmp_path).to_numpy()
    for env_id in range(2):
        mine = {name: values[rows["env_id"] == env_id] for name, values in rows.items()}
        over = mine["terminated"] | mine["truncated"]
        numbers = np.unique(mine["episode"])
        assert np.array_equal(numbers, np.arange(len(numbers)))
        for number in numbers:
            one = mine["episode"] == number
            assert np.array_equal(mine["step"][one], np.arange(one.sum()))
            assert np.array_equal(mine["obs"][one][1:], mine["next_obs"][one][:-1])
            assert not over[one][:-1].any()
            assert over[one][-1] == (one.sum() == 3 + env_id), "an episode is whole, or cut by the end of its part"


def test_a_fault_ends_an_episode_and_leaves_no_row(tmp_path: Path) -> None:
    with shoal.make_pool(
        lambda: FaultEnv("raise", at=4, episode_length=50), 1, engine="serial", on_fault="restart"
    ) as pool:
        epoch = shoal.Collector(pool, lambda obs: np.zeros(len(obs), np.int64), seed=1).collect(9)
    rows = rows_of(epoch, Counters(np.zeros(1, np.int32)), 99).columns
    assert rows["step"].tolist()[:5] == [0, 1, 2, 0, 1]
    assert rows["episode"].tolist()[:5] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_a_fault_ends_its_episode_wherever_an_epoch_ends(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {}
    for name, epoch_bytes in (("several steps", 2**20), ("a step", 1)):
        monkeypatch.setattr("shoal.collect.writing._EPOCH_BYTES", epoch_bytes)
        with shoal.make_pool(
            lambda: FaultEnv("raise", at=4, episode_length=50),
            2,
            engine="serial",
            autoreset=mode,
            on_fault=shoal.Restart(budget=None, backoff_s=0.0),
        ) as pool:
            told[name] = write_dataset(pool, tmp_path / name, steps=61, seed=4, format="npz").episodes
    several, one = (load_dataset(tmp_path / name).to_numpy() for name in told)
    assert same(several, one)
    # The last episodes may have been cut by the end of the dataset instead.
    assert np.array_equal(one["truncated"][:54], one["step"][:54] == 2)
    assert set(told.values()) == {one["truncated"].sum()}


def test_statistics_are_those_of_the_episodes(tmp_path: Path) -> None:
    written = write(tmp_path, 200)
    rows, dataset = load_dataset(tmp_path).to_numpy(), load_dataset(tmp_path)
    over = rows["terminated"] | rows["truncated"]
    lengths = rows["step"][over] + 1
    returns = [
        rows["reward"][(rows["env_id"] == i) & (rows["episode"] == e)].sum()
        for i, e in zip(rows["env_id"][over], rows["episode"][over], strict=True)
    ]
    assert written.episodes == dataset.num_episodes == over.sum()
    assert written.mean_length == pytest.approx(lengths.mean())
    assert written.mean_return == pytest.approx(np.mean(returns))
    assert written.std_return == pytest.approx(np.std(returns))


def test_arrays_of_any_type_and_shape(format: str, tmp_path: Path) -> None:
    dtypes = ("uint8", "int16", "float16", "float64")
    space = spaces.Dict(
        {
            **{f"cube of {name}": spaces.Box(0, 100, (2, 3, 2), np.dtype(name).type) for name in dtypes},
            **{f"{name}": spaces.Box(0, 100, (), np.dtype(name).type) for name in dtypes},
            "nothing": spaces.Box(0, 1, (0,), np.float32),
            "words": spaces.Text(9),
        }
    )
    with shoal.make_pool(lambda: SampleEnv(space), 2, engine="serial") as pool:
        write_dataset(pool, tmp_path, steps=30, seed=1, format=format)
        told = shoal.Collector(pool, seed=part_seed(1, 0)).collect(20).transitions()
    rows = load_dataset(tmp_path).to_numpy()
    for key, values in told.next_obs.items():
        assert np.array_equal(rows[f"next_obs.{key}"], values[:30]), key
        assert rows[f"next_obs.{key}"].dtype == values.dtype


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (spaces.Graph(spaces.Box(0, 1, (2,)), None), "neither arrays of one shape nor text"),
        (spaces.Dict({"a.b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "'obs.a.b'"),
    ],
)
def test_what_has_no_column_is_refused_before_anything_is_written(space: Any, told: str, tmp_path: Path) -> None:
    with (
        shoal.make_pool(lambda: SampleEnv(space), 2, engine="serial") as pool,
        pytest.raises(ArgumentError, match=told),
    ):
        write_dataset(pool, tmp_path / "data", steps=30)
    assert not (tmp_path / "data").exists()


def test_an_asynchronous_pool_is_refused(tmp_path: Path) -> None:
    with counting(batch_size=1) as pool, pytest.raises(ArgumentError, match="in step"):
        write_dataset(pool, tmp_path, steps=30)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BackendUnavailable, match=r"shoal\[collect\]"):
        write(tmp_path / "data", 30, format="parquet")
    assert not (tmp_path / "data").exists()


# ---------------------------------------------------------------------- going on


def test_a_dataset_in_two_runs_is_that_of_one(tmp_path: Path, format: str) -> None:
    write(tmp_path / "whole", 60, format=format)
    write(tmp_path / "parts", 20, format=format)
    again = write(tmp_path / "parts", 60, format=format, existing="resume", seed=None, part_rows=None)
    assert again.rows == 40
    assert same(load_dataset(tmp_path / "whole").to_numpy(), load_dataset(tmp_path / "parts").to_numpy())
    assert write(tmp_path / "parts", 60, format=format, existing="resume").rows == 0


def test_parts_differ(tmp_path: Path) -> None:
    write(tmp_path, 60)
    one, two, three = load_dataset(tmp_path)
    assert not same(one, two)
    assert not same(two, three)


def test_the_engine_makes_no_difference(tmp_path: Path) -> None:
    for name, engine in (("serial", "serial"), ("thread", "thread")):
        with shoal.make_pool(CountingEnv, 3, engine=engine) as pool:
            write_dataset(pool, tmp_path / name, steps=60, seed=4, format="npz", part_rows=30)
    assert same(*(load_dataset(tmp_path / name).to_numpy() for name in ("serial", "thread")))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": 5}, "seed is 4 there and 5 here"),
        ({"part_rows": 30}, "part_rows is 20 there and 30 here"),
        ({"env": "Other-v0"}, "env is .* there and 'Other-v0' here"),
        ({"env_kwargs": {"size": 3}}, "env_kwargs"),
        ({"policy_name": "mine:act"}, "policy is 'random' there and 'mine:act' here"),
        ({"num_envs": 4}, "num_envs is 3 there and 4 here"),
    ],
)
def test_another_config_cannot_be_resumed(options: dict[str, Any], told: str, tmp_path: Path) -> None:
    write(tmp_path, 40)
    with pytest.raises(ArgumentError, match=f"cannot be resumed: {told}"):
        write(tmp_path, 80, existing="resume", **options)
    assert len(load_dataset(tmp_path)) == 40


def play(folder: Path, steps: int, *, policy: Any = None, existing: Any = "resume", **how: Any) -> None:
    with shoal.make_pool("CartPole-v1", 2, **{"engine": "serial", **how}) as pool:
        write_dataset(pool, folder, steps=steps, policy=policy, seed=4, format="npz", part_rows=100, existing=existing)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"autoreset": "same_step"}, "autoreset is 'next_step' there and 'same_step' here"),
        ({"max_episode_steps": 5}, "max_episode_steps is 500 there and 5 here"),
        (
            {"env_kwargs": {"sutton_barto_reward": True}},
            "env_kwargs is {} there and {'sutton_barto_reward': True} here",
        ),
    ],
)
@pytest.mark.parametrize("engine", ["serial", "auto"])
def test_a_pool_that_would_give_other_rows_does_not_go_on(
    how: dict[str, Any], told: str, engine: str, tmp_path: Path
) -> None:
    play(tmp_path, 100)
    play(tmp_path, 200, engine=engine)
    with pytest.raises(ArgumentError, match=f"cannot be resumed: {told}"):
        play(tmp_path, 300, engine=engine, **how)
    assert len(load_dataset(tmp_path)) == 200


def test_what_the_envs_were_made_with_is_recorded(tmp_path: Path) -> None:
    alike = partial(CountingEnv, episode_length=2)
    for name, env, kwargs, expected in (
        ("id", "FrozenLake-v1", {"is_slippery": False}, {"is_slippery": False}),
        ("partial", alike, None, {"episode_length": 2}),
        ("each", [partial(CountingEnv, tag=np.int64(i)) for i in range(2)], None, [{"tag": 0}, {"tag": 1}]),
        ("object", CountingEnv, {"episode_length": np.array(2)}, {"episode_length": 2}),
    ):
        with shoal.make_pool(env, 2, engine="serial", env_kwargs=kwargs, max_episode_steps=7) as pool:
            write_dataset(pool, tmp_path / name, steps=20, format="npz")
        config = load_dataset(tmp_path / name).config
        assert (config.env_kwargs, config.max_episode_steps) == (expected, 7)


def test_a_dataset_from_before_all_that_was_recorded_goes_on(tmp_path: Path) -> None:
    play(tmp_path, 100)
    told = json.loads((tmp_path / "_dataset.json").read_text())
    del told["config"]["autoreset"], told["config"]["max_episode_steps"]
    (tmp_path / "_dataset.json").write_text(json.dumps(told))
    assert load_dataset(tmp_path).config.autoreset is None
    play(tmp_path, 200, autoreset="same_step")
    assert len(load_dataset(tmp_path)) == 200


def always(action: int) -> Any:
    return lambda obs: np.full(len(obs), action)


def test_a_policy_without_a_name_of_its_own_is_known_by_its_code(tmp_path: Path) -> None:
    play(tmp_path, 100, policy=always(1))
    play(tmp_path, 200, policy=always(1))
    other = eval("lambda obs: np.zeros(len(obs), int)", {"np": np, "__name__": __name__})
    partials = [partial(np.full_like, fill_value=number) for number in (0, 1)]
    for policy in (always(0), other, *partials):
        with pytest.raises(ArgumentError, match=r"cannot be resumed: policy is '.*lambda>#.*' there and"):
            play(tmp_path, 300, policy=policy)
    assert load_dataset(tmp_path).config.policy.startswith(f"{__name__}:always.<locals>.<lambda>#")
    assert name_of(partials[0]) != name_of(partials[1])


def test_the_name_of_a_policy() -> None:
    class Network:
        def __call__(self, obs: Any) -> Any:
            return obs

    assert name_of(always) == f"{__name__}:always"
    assert name_of(partial(always)) != name_of(always(1))
    assert name_of(CountingEnv().step) == "shoal.testing.envs:CountingEnv.step"
    assert name_of(Network()) == name_of(Network())
    assert name_of(Network()).startswith(f"{__name__}:test_the_name_of_a_policy.<locals>.Network#")


@pytest.mark.parametrize("seed", [[1, 2], True, np.True_, -1, 2.0, "7", np.array([1, 2])], ids=repr)
def test_what_is_no_seed_is_refused_before_anything_is_written(seed: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"^seed: expected an int of at least 0, or None, got"):
        write(tmp_path / "data", 20, seed=seed)
    assert not (tmp_path / "data").exists()


def test_numbers_may_be_numpys(tmp_path: Path) -> None:
    write(tmp_path / "python", 50, seed=4)
    write(tmp_path / "numpy", np.int64(50), seed=np.int64(4), part_rows=np.int32(20))  # type: ignore[arg-type]
    assert same(load_dataset(tmp_path / "python").to_numpy(), load_dataset(tmp_path / "numpy").to_numpy())


@pytest.mark.parametrize("steps", [10.5, 0, None, True])
def test_what_is_no_number_of_steps_is_refused(steps: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"^steps: expected an int of at least 1"):
        write(tmp_path / "data", steps)
    with pytest.raises(ArgumentError, match=r"^part_rows: expected an int of at least 1"):
        write(tmp_path / "data", 10, part_rows=0)
    assert not (tmp_path / "data").exists()


def test_a_dataset_is_not_overwritten_unasked(tmp_path: Path) -> None:
    write(tmp_path, 60)
    with pytest.raises(ArgumentError, match="there is a dataset already, of 60 rows"):
        write(tmp_path, 80)
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, 20, existing="overwrite")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_dataset.json", "notes.txt", "part-00000.npz"]


def test_a_dataset_is_overwritten_once_there_is_a_part_to_replace_it(tmp_path: Path, format: str) -> None:
    write(tmp_path, 60)
    before = load_dataset(tmp_path).to_numpy()

    def fail(so_far: shoal.collect.Written) -> None:
        raise RuntimeError(f"after {so_far.rows} rows")

    with pytest.raises(RuntimeError, match=r"after \d+ rows"):
        write(tmp_path, 40, format=format, existing="overwrite", on_progress=fail)
    assert same(load_dataset(tmp_path).to_numpy(), before)
    write(tmp_path, 40, format=format, existing="overwrite")
    names = ["_dataset.json", f"part-00000.{format}", f"part-00001.{format}"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def remove(part: Path) -> None:
    part.unlink()


def cut_off(part: Path) -> None:
    part.write_bytes(part.read_bytes()[:-40])


def shorten(part: Path) -> None:
    write(part.parent / "short", 10, format=part.suffix[1:])
    (part.parent / "short" / "part-00000").with_suffix(part.suffix).replace(part)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (remove, "not a part that can be read"),
        (cut_off, "not a part that can be read"),
        (shorten, "has 10 rows, and _dataset.json says 20"),
    ],
)
def test_a_dataset_that_is_damaged_is_not_resumed(
    damage: Callable[[Path], None], told: str, tmp_path: Path, format: str
) -> None:
    write(tmp_path, 60, format=format)
    damage(tmp_path / f"part-00001.{format}")
    with pytest.raises(ArgumentError, match=re.escape(f"part-00001.{format}: {told}")):
        write(tmp_path, 60, format=format, existing="resume")


@pytest.mark.parametrize("existing", ["refuse", "resume", "overwrite"])
def test_a_folder_of_something_else_is_left_alone(existing: Any, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ArgumentError, match=r"something else \(thesis.tex\)"):
        write(tmp_path, 20, existing=existing)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_there_is_one_writer(tmp_path: Path) -> None:
    with sole_writer(tmp_path), pytest.raises(StateError, match="another process is writing"):
        write(tmp_path, 20)


# ---------------------------------------------------------------------- stopped at any moment


class Stopped(BaseException):
    """What a kill is to a program that gets no chance to react."""


def test_stopped_at_every_touch_of_the_disk_it_is_readable_and_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, make_pool: Callable[..., shoal.Pool]
) -> None:
    options: dict[str, Any] = {"steps": 30, "part_rows": 15, "seed": 4, "format": format}
    stops, stopped = 0, True
    pool = make_pool(lambda: CountingEnv(episode_length=4), 2, engine="serial")
    write_dataset(pool, tmp_path / "whole", **options)
    whole = list(load_dataset(tmp_path / "whole"))
    while stopped:
        folder = tmp_path / str(stops)
        stopped = is_stopped(stops, monkeypatch, partial(write_dataset, pool, folder, **options))
        if (folder / "_dataset.json").exists():
            parts = list(load_dataset(folder))
            assert all(same(part, expected) for part, expected in zip(parts, whole[: len(parts)], strict=True))
        else:
            assert stops <= 4, "from the first rename on, there is a dataset"
        write_dataset(pool, folder, existing="resume", **options)
        assert all(same(part, expected) for part, expected in zip(load_dataset(folder), whole, strict=True))
        names = {path.name for path in folder.iterdir()}
        assert names == {"_dataset.json", *(f"part-0000{i}.{format}" for i in range(2))}
        stops += 1
    assert stops > 3 * 5, "opening, fsync and rename of five files"


def test_stopped_while_it_overwrites_there_is_the_old_dataset_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_pool: Callable[..., shoal.Pool]
) -> None:
    pool = make_pool(lambda: CountingEnv(episode_length=4), 2, engine="serial")
    options: dict[str, Any] = {"steps": 30, "part_rows": 15, "format": "npz"}
    for seed in (1, 2):
        write_dataset(pool, tmp_path / f"seed {seed}", seed=seed, **options)
    old, new = (list(load_dataset(tmp_path / f"seed {seed}")) for seed in (1, 2))
    seen: list[tuple[int, int]] = []
    stopped = True
    while stopped:
        folder = tmp_path / str(len(seen))
        write_dataset(pool, folder, seed=1, **options)
        overwrite = partial(write_dataset, pool, folder, seed=2, existing="overwrite", **options)
        stopped = is_stopped(len(seen), monkeypatch, overwrite)
        dataset = load_dataset(folder)
        expected = {1: old, 2: new[: len(dataset.parts)]}[dataset.config.seed]
        assert all(same(part, told) for part, told in zip(dataset, expected, strict=True))
        seen.append((dataset.config.seed, len(dataset.parts)))
    assert seen == sorted(seen, key=lambda found: (found[0], found[1] if found[0] == 2 else 0))
    assert set(seen) == {(1, 2), (2, 0), (2, 1), (2, 2)}


def is_stopped(stops: int, monkeypatch: pytest.MonkeyPatch, write: Callable[[], Any]) -> bool:
    """Write, and stop for good at one of the calls that change what is on disk, if there are as many."""
    left = stops

    def or_stop(call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Stopped
            return call(*args, **kwargs)

        return counted

    with monkeypatch.context() as patch:
        patch.setattr("shoal.collect.formats.os.fsync", or_stop(lambda fd: None))
        patch.setattr("shoal.collect.formats.open", or_stop(open), raising=False)
        for name in ("replace", "unlink"):  # unlink too: who is killed clears nothing away
            patch.setattr(Path, name, or_stop(getattr(Path, name)))
        try:
            write()
        except Stopped:
            return True
    return False


def test_leftovers_are_no_part(tmp_path: Path) -> None:
    write(tmp_path, 40)
    draft_of(tmp_path / "part-00002.npz").write_bytes(b"half of")
    (tmp_path / "part-00002.npz").write_bytes(b"whole, but nobody has said so yet")
    assert len(load_dataset(tmp_path).to_numpy()["reward"]) == 40


# ---------------------------------------------------------------------- reading


def test_columns_can_be_chosen(tmp_path: Path, format: str) -> None:
    write(tmp_path, 40, format=format)
    dataset = load_dataset(tmp_path)
    assert list(dataset.to_numpy(["reward", "obs"])) == ["reward", "obs"]
    with pytest.raises(ArgumentError, match="there is no 'rewards'; there are env_id"):
        dataset.to_numpy(["rewards"])
    assert "40 rows in 2 parts, 3 × " in repr(dataset)


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told.update(format_version=2),
        lambda told: told["parts"][0].update(file="../../secret.npz"),
        lambda told: told["parts"][0].update(rows=-1),
        lambda told: told["columns"][0].update(dtype="object"),
        lambda told: told["config"].update(format="pickle"),
        lambda told: told.pop("columns"),
    ],
)
def test_a_story_that_is_none_is_refused(change: Any, tmp_path: Path) -> None:
    write(tmp_path, 20)
    told = json.loads((tmp_path / "_dataset.json").read_text())
    change(told)
    (tmp_path / "_dataset.json").write_text(json.dumps(told))
    with pytest.raises(ArgumentError, match="not a dataset that can be read"):
        load_dataset(tmp_path)


def test_a_part_that_is_cut_off_is_refused(tmp_path: Path, format: str) -> None:
    write(tmp_path, 20, format=format)
    part = tmp_path / f"part-00000.{format}"
    part.write_bytes(part.read_bytes()[:-40])
    with pytest.raises(ArgumentError, match="not a part that can be read"):
        load_dataset(tmp_path).to_numpy()


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    write(tmp_path, 20)
    with np.load(tmp_path / "part-00000.npz") as arrays:
        columns = dict(arrays)
    columns["reward"] = columns["reward"].astype(object)
    np.savez(tmp_path / "part-00000.npz", **columns)
    with pytest.raises(ArgumentError, match="allow_pickle"):
        load_dataset(tmp_path).to_numpy()


def test_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"there is no dataset \(_dataset.json is missing\)"):
        load_dataset(tmp_path)
