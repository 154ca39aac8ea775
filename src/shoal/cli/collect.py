"""``shoal collect``: run envs under a policy and keep the transitions."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.arguments import check_choice
from shoal.build import make_pool
from shoal.cli.actions import load_policy
from shoal.cli.common import (
    ENV_HELP,
    AsJson,
    Debug,
    EngineName,
    NumEnvs,
    NumWorkers,
    PolicyName,
    env_from,
    exit_codes,
    results_alone_on_stdout,
)
from shoal.cli.display import Display, display_for, engine_told, print_rows
from shoal.cli.drive import Progress, for_json
from shoal.collect.dataset import STORY, load_dataset
from shoal.collect.folder import Existing, clear, clear_minari, find_story
from shoal.collect.formats import check_format
from shoal.collect.minari_export import check_minari, check_spaces, to_minari
from shoal.collect.writing import Written, write_dataset
from shoal.doctor.diagnosis import plural
from shoal.errors import ArgumentError
from shoal.pool import Pool

_FORMATS = ("parquet", "npz", "minari")

# Typer's rich text keeps every line break, so this is not a docstring.
COLLECT_HELP = """Run envs under a policy and keep the transitions, as a dataset of one row per step.

It is written in parts. Whenever the command ends, and be it by a kill, all parts that were complete are a dataset,
and [green]--resume[/] goes on from there. [green]shoal.collect.load_dataset(PATH)[/] reads it.
Progress goes to stderr, the result to stdout.
The exit code is 0, 2 after an error, or 130 after Ctrl-C.

[bold]A million random steps, as Parquet[/]
[green]shoal collect CartPole-v1 --steps 1_000_000 --out data/cartpole[/]

[bold]A policy of your own[/]
[green]shoal collect CartPole-v1 --policy my_policy:act --seed 1 --out data/mine[/]

[bold]A long run of slow envs that may be stopped at any time, and started again in the same words[/]
[green]shoal collect my_envs:SlowEnv -n 32 --engine process --steps 10_000_000 --out data/slow --resume[/]

[bold]For Minari[/]
[green]shoal collect Pendulum-v1 --format minari --out data/pendulum-v0[/]
"""


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for.

    Attributes:
        env: The env as it was typed.
        env_kwargs: Keyword arguments of the env.
        num_envs: How many envs.
        engine: Where they run.
        num_workers: Threads or processes.
        policy: The policy as it was typed.
        steps: Rows that the dataset is to have.
        out: The folder of the dataset.
        format: ``parquet``, ``npz`` or ``minari``.
        seed: The seed of the dataset.
        part_rows: Rows per part.
        existing: What to do with a dataset that already exists.
    """

    env: str
    env_kwargs: dict[str, Any]
    num_envs: int
    engine: str
    num_workers: int | None
    policy: str
    steps: int
    out: Path
    format: str
    seed: int | None
    part_rows: int | None
    existing: Existing


def collect(
    env: Annotated[str, typer.Argument(metavar="ENV", help=ENV_HELP)],
    out: Annotated[Path, typer.Option(metavar="PATH", help="The folder of the dataset.")],
    num_envs: NumEnvs = 64,
    steps: Annotated[
        int, typer.Option(min=1, help="Rows that the dataset is to have; [cyan]1_000_000[/] may be written so.")
    ] = 1_000_000,
    policy: PolicyName = "random",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the dataset. Drawn if not given.")] = None,
    engine: EngineName = "auto",
    num_workers: NumWorkers = None,
    env_kwargs: Annotated[
        str, typer.Option(metavar="JSON", help='What to make the env with, such as [cyan]{"size": 5}[/].')
    ] = "{}",
    format: Annotated[
        str, typer.Option(help="[cyan]parquet[/], [cyan]npz[/] or [cyan]minari[/] (if Minari is installed).")
    ] = "parquet",
    part_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows per part, and so what a kill can cost. All envs are reset when a part begins."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the dataset that is there, if any.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the dataset that is there, if any.")] = False,
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table at the end.")] = False,
    debug: Debug = False,
) -> None:
    """Run envs under a policy and keep the transitions."""
    with exit_codes(debug=debug):
        if resume and overwrite:
            raise ArgumentError("--resume and --overwrite: one of them, not both")
        existing: Existing = "resume" if resume else "overwrite" if overwrite else "refuse"
        request = Request(
            *(env, _kwargs(env_kwargs), num_envs, engine, num_workers, policy),
            *(steps, out, format, seed, part_rows, existing),
        )
        to_collect = _rows_to_collect(request)
        with results_alone_on_stdout():
            result = _collect(request, to_collect, quiet=quiet or as_json)
        if as_json:
            print(json.dumps(for_json(result)))
        else:
            print_rows(_table_rows(result))


def _kwargs(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"--env-kwargs: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ArgumentError(f"--env-kwargs: expected a JSON object, got {text}")
    return found


def _rows_to_collect(request: Request) -> int:
    """How many rows are left to collect. Every mistake that can be found without envs is found here."""
    check_choice("--format", request.format, _FORMATS)
    if request.format == "minari":
        check_minari(request.out)
    else:
        check_format(request.format, ())
    story = find_story(request.out, request.existing)
    return max(0, request.steps - (story.rows if story else 0))


def _collect(request: Request, to_collect: int, *, quiet: bool) -> dict[str, Any]:
    policy = None if request.policy == "random" else load_policy(request.policy)
    with (
        display_for(to_collect, quiet=quiet) as display,
        # The transitions are the same in every autoreset mode, and this one spends no row on a reset.
        make_pool(
            env_from(request.env),
            request.num_envs,
            engine=request.engine,
            num_workers=request.num_workers,
            env_kwargs=request.env_kwargs,
            autoreset="same_step",
        ) as pool,
    ):
        if request.format == "minari":
            check_spaces(pool.spec)
        old = _story_in(request.out)
        try:
            written = write_dataset(
                pool,
                request.out,
                steps=request.steps,
                policy=policy,
                policy_name=request.policy,
                seed=request.seed,
                # A Minari dataset is made from a complete one; until then, there are parts that can be resumed.
                format="npz" if request.format == "minari" else request.format,
                existing=request.existing,
                part_rows=request.part_rows,
                env=request.env,
                env_kwargs=request.env_kwargs,
                on_progress=_shown_on(display),
            )
        except ArgumentError:
            raise  # nothing has been written
        except BaseException:
            if request.existing != "overwrite" or _story_in(request.out) != old:
                _tell_what_is_there(request.out)
            elif old:
                print(f"shoal: the dataset in {request.out} is as it was", file=sys.stderr)
            raise
        return _finished(request, pool, written)


def _shown_on(display: Display) -> Callable[[Written], None]:
    due_s = 0.0

    def show(so_far: Written) -> None:
        nonlocal due_s
        if so_far.elapsed_s >= due_s:
            due_s = so_far.elapsed_s + display.every_s
            display.show(
                Progress(
                    so_far.rows,
                    so_far.total_rows,
                    so_far.elapsed_s,
                    so_far.episodes,
                    so_far.recent_return,
                    so_far.recent_length,
                )
            )

    return show


def _story_in(folder: Path) -> bytes:
    story = folder / STORY
    return story.read_bytes() if story.is_file() else b""


def _tell_what_is_there(out: Path) -> None:
    """Say, after an error or Ctrl-C, what is complete and how to go on."""
    if (out / STORY).is_file() and len(dataset := load_dataset(out)):
        told = f"{len(dataset):,} rows in {plural(len(dataset.parts), 'part')} are complete in {out}"
        print(f"shoal: {told}; --resume goes on from there", file=sys.stderr)


def _finished(request: Request, pool: Pool, written: Written) -> dict[str, Any]:
    """The result as plain data; for Minari, this also does the conversion."""
    dataset, stats = load_dataset(request.out), pool.stats()
    result = {
        "path": str(request.out),
        "format": request.format,
        "rows": len(dataset),
        "parts": len(dataset.parts),
        "env": dataset.config.env,
        "env_kwargs": dataset.config.env_kwargs,
        "num_envs": dataset.config.num_envs,
        "policy": dataset.config.policy,
        "seed": dataset.config.seed,
        "engine": stats.engine,
        "engine_reason": stats.engine_reason,
        "num_workers": stats.num_workers,
        "new_rows": written.rows,
        "elapsed_s": written.elapsed_s,
        "steps_per_s": written.rows_per_s,
        **{name: value for name, value in asdict(written).items() if name in _EPISODES},
    }
    if request.format == "minari":
        clear_minari(request.out)  # left by a run that was killed just before the parts were cleared away
        to_minari(dataset, request.out, pool.spec)
        clear(request.out)
    result["size_bytes"] = sum(path.stat().st_size for path in request.out.rglob("*") if path.is_file())
    return result


_EPISODES = ("episodes", "mean_return", "std_return", "mean_length")


def _table_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    size = f"{result['size_bytes'] / 1e6:,.1f} MB"
    parts = f", {plural(result['parts'], 'part')}" if result["format"] != "minari" else ""
    before = result["rows"] - result["new_rows"]
    rows = [
        ("data", f"{result['path']} ({result['format']}{parts}, {size})"),
        ("env", f"{result['num_envs']} × {result['env']}, policy {result['policy']}, seed {result['seed']}"),
        ("engine", engine_told(result["engine"], result["num_workers"], result["engine_reason"])),
        ("rows", f"{result['rows']:,}" + (f", {before:,} of them from before" if before else "")),
    ]
    if result["new_rows"]:
        speed = f"{result['steps_per_s']:,.0f} steps/s for {result['elapsed_s']:.2f} s"
        rows.append(("speed", f"{speed}, writing included"))
        rows.append(("episodes", f"{result['episodes']:,}"))
    if result["mean_return"] is not None:
        rows.append(("mean return", f"{result['mean_return']:.2f} ± {result['std_return']:.2f}"))
        rows.append(("mean length", f"{result['mean_length']:.1f}"))
    return [*rows, ("read it", _how_to_read(result))]


def _how_to_read(result: dict[str, Any]) -> str:
    path = Path(result["path"])
    if result["format"] == "minari":
        return f"MINARI_DATASETS_PATH={path.parent.absolute()}, then minari.load_dataset({path.name!r})"
    return f"shoal.collect.load_dataset({str(path)!r}).to_numpy()"
