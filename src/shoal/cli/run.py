"""``shoal run``: step an env and see how fast it goes."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from shoal.build import make_pool
from shoal.cli.actions import Actor, load_policy, policy_actor
from shoal.cli.codes import INTERRUPTED
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
from shoal.cli.display import display_for, print_result
from shoal.cli.drive import RunResult, drive

# Typer's rich text keeps every line break, so this is not a docstring.
RUN_HELP = """Step an env and see how fast it goes.

Progress goes to stderr, the result to stdout.
The exit code is 0, 2 after an error, or 130 after Ctrl-C, which still prints what was done so far.

[bold]A million steps with 64 envs, on the engine that suits them[/]
[green]shoal run CartPole-v1[/]

[bold]Eight envs in two processes[/]
[green]shoal run CartPole-v1 -n 8 --steps 100_000 --engine process --num-workers 2[/]

[bold]The same with one process less: this one does its work[/]
[green]shoal run CartPole-v1 -n 8 --steps 100_000 --engine process --num-workers 2 --inline[/]

[bold]An env of your own; answer the first 8 that are ready[/]
[green]shoal run my_envs:SlowEnv -n 32 --batch-size 8 --engine thread[/]

[bold]A policy of your own, for scripts[/]
[green]shoal run CartPole-v1 --policy my_policy:act --seed 1 --json[/]
"""


def run(
    env: Annotated[
        str,
        typer.Argument(metavar="ENV", help=ENV_HELP),
    ],
    num_envs: NumEnvs = 64,
    steps: Annotated[
        int, typer.Option(min=1, help="Env steps to do, over all envs; [cyan]1_000_000[/] may be written so.")
    ] = 1_000_000,
    engine: EngineName = "auto",
    num_workers: NumWorkers = None,
    inline: Annotated[
        bool, typer.Option("--inline", help="With worker processes: this one steps a share of the envs as well.")
    ] = False,
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Rows per batch. Fewer than envs: take the first that are ready (send and recv)."),
    ] = None,
    autoreset: Annotated[
        str, typer.Option(help="[cyan]next_step[/], [cyan]same_step[/] or [cyan]disabled[/] (reset by this loop).")
    ] = "next_step",
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the envs and of random actions.")] = None,
    policy: PolicyName = "random",
    as_json: AsJson = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table at the end.")] = False,
    debug: Debug = False,
) -> None:
    """Step an env and see how fast it goes."""
    with exit_codes(debug=debug):
        pool_options = {
            "engine": engine,
            "num_workers": num_workers,
            "inline": inline,
            "batch_size": batch_size,
            "autoreset": autoreset,
        }
        with results_alone_on_stdout():
            actor = None if policy == "random" else policy_actor(load_policy(policy))
            result = _run(env_from(env), num_envs, pool_options, actor, steps, seed, quiet=quiet or as_json)
        if as_json:
            print(json.dumps(result.as_dict()))
        else:
            print_result(result)
        if result.interrupted:
            raise typer.Exit(INTERRUPTED)


def _run(
    env: Any, num_envs: int, options: dict[str, Any], actor: Actor | None, steps: int, seed: int | None, *, quiet: bool
) -> RunResult:
    with (
        display_for(steps, quiet=quiet) as display,
        make_pool(env, num_envs, **options) as pool,
    ):
        return drive(pool, actor, steps=steps, seed=seed, on_progress=display.show, progress_every_s=display.every_s)
