"""The batch loop of one kind of kernel env, as source.

The loop is written out for each kind, because its leaves, fields and shapes are known: what numba compiles has no
lists to walk and no branches on types. It finds everything through a table of addresses, so that a call passes five
numbers whatever the env:

    table[0]    number of envs          table[1]  autoreset mode        table[2]  time limit
    table[3]    whether a reward must be finite
    table[4:]   addresses of columns, in the order of ``columns``

It sets ``odd[0]`` when a row has held NaN or a reward that is not finite, so that nobody has to search all rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from shoal.seeding import WORDS
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from shoal.spec import EnvSpec, SpaceTree

HEADER = 4
MODES = {Autoreset.NEXT_STEP: 0, Autoreset.SAME_STEP: 1, Autoreset.DISABLED: 2}
NO_LIMIT = 2**62


@dataclass(frozen=True)
class Column:
    """One array of the loop: its name there, the dtype as source, and the shape of one row."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def columns(spec: EnvSpec) -> list[Column]:
    """Every array the loop uses, in the order of the table."""
    fixed = [
        Column("records", "RECORD", ()),
        Column("words", "np.uint64", (WORDS,)),
        Column("over", "np.bool_", ()),
        Column("steps", "np.int64", ()),
        Column("progress", "np.int64", ()),
        Column("ends", "np.int64", ()),
        Column("odd", "np.int64", ()),
        Column("reward", "np.float64", ()),
        Column("elapsed", "np.int32", ()),
        Column("terminated", "np.bool_", ()),
        Column("truncated", "np.bool_", ()),
        Column("first", "np.bool_", ()),
    ]
    leaves = [
        # A scalar observation is written to, so it is an array of one; a scalar action is only read.
        *(Column(f"obs{j}", _source(leaf.dtype), leaf.shape or (1,)) for j, leaf in enumerate(spec.observation.leaves)),
        *(
            Column(f"final{j}", _source(leaf.dtype), leaf.shape or (1,))
            for j, leaf in enumerate(spec.observation.leaves)
        ),
        *(Column(f"action{j}", _source(leaf.dtype), leaf.shape) for j, leaf in enumerate(spec.action.leaves)),
    ]
    fields = [
        Column(f"{prefix}_{field.name}", _source(field.dtype), field.shape)
        for prefix in ("info", "final_info")
        for field in spec.info
    ]
    return fixed + leaves + fields


def loop_source(spec: EnvSpec) -> str:
    """A module with ``step_rows`` and ``reset_rows``, and ``serve_rows`` for helpers that watch a bell.

    It expects ``reset``, ``step``, ``RECORD``, ``rng_at``, and the names in ``intrinsics`` and ``bells`` among its
    globals, and ``Obs`` and ``Action`` for Dict spaces.
    """
    table = f"    table = array_at(table_at, ({HEADER + len(columns(spec))},), np.uint64)"
    bind = "\n".join(
        f"    {column.name} = array_at(table[{HEADER + k}], {_shape(column)}, {column.dtype})"
        for k, column in enumerate(columns(spec))
    )
    report = [_assign(f"info_{f.name}", f"env.{f.name}", f.shape) for f in spec.info]
    places = {column.name: HEADER + k for k, column in enumerate(columns(spec))}
    floats = [
        (j, prod(leaf.shape), _source(leaf.dtype))
        for j, leaf in enumerate(spec.observation.leaves)
        if leaf.dtype.kind in "fc"
    ]
    # A flat view of each leaf, because numba makes a copy of every other form.
    flat = [f"flat{j} = array_at(table[{places[f'obs{j}']}], (n * {size},), {dtype})" for j, size, dtype in floats]
    look = [
        f"for x in range(i * {size}, i * {size} + {size}):\n{{indent}}    strange |= flat{j}[x] != flat{j}[x]"
        for j, size, _ in floats
    ]
    begin = [*_FIRST_ROW, *report, *look]
    parts = {
        "table": table,
        "bind": "\n".join([bind, _lines(flat, 4)]),
        "obs": _value(spec.observation, "Obs", "obs"),
        "action": _value(spec.action, "Action", "action"),
        "report": _lines([*report, *look], 8),
        "begin": _lines(begin, 8),
        "begin_in_step": _lines(begin, 12),
        "keep_final": _lines(
            [
                *(
                    _assign(f"final{j}", f"obs{j}", leaf.shape or (1,), "i")
                    for j, leaf in enumerate(spec.observation.leaves)
                ),
                *(_assign(f"final_info_{f.name}", f"env.{f.name}", f.shape) for f in spec.info),
                *look,
            ],
            16,
        ),
    }
    return _TEMPLATE.format(**parts)


def _source(dtype: np.dtype[Any]) -> str:
    return "np.bool_" if dtype == np.bool_ else f"np.{dtype.name}"


def _shape(column: Column) -> str:
    return f"(n, {', '.join(map(str, column.shape))})" if column.shape else "(n,)"


def _value(tree: SpaceTree, maker: str, prefix: str) -> str:
    """An observation or action in the form that the author's functions expect."""
    items = [f"{prefix}{j}[i]" for j in range(len(tree.leaves))]
    if tree.is_single:
        return items[0]
    return f"{maker if isinstance(tree.space, spaces.Dict) else ''}({', '.join(items)},)"


def _assign(target: str, value: str, shape: tuple[int, ...], row: str = "") -> str:
    """Copy a value, or a row of another column, into a row: number by number, so that no shapes are compared."""
    axes = [f"a{k}" for k in range(len(shape))]
    loops = [f"for a{k} in range({size}):\n{{indent}}{'    ' * (k + 1)}" for k, size in enumerate(shape)]
    places = [row, *axes] if row else axes
    source = f"{value}[{', '.join(places)}]" if places else value
    return f"{''.join(loops)}{target}[{', '.join(['i', *axes])}] = {source}"


def _lines(statements: list[str], indent: int) -> str:
    return "\n".join(" " * indent + statement.format(indent=" " * indent) for statement in statements)


# The row of an env that has just been reset, on demand or automatically.
_FIRST_ROW = (
    "over[i] = False",
    "steps[i] = 0",
    "reward[i] = 0.0",
    "elapsed[i] = 0",
    "terminated[i] = False",
    "truncated[i] = False",
    "first[i] = True",
)

_TEMPLATE = """\
from math import isfinite

import numpy as np

from shoal.errors import SpecError


def step_rows(table_at, ids_at, start, stop, slot):
{table}
    ids = array_at(ids_at, (stop,), np.int32)
    n = np.int64(table[0])
    mode = np.int64(table[1])
    limit = np.int64(table[2])
    strict = table[3] != 0
    strange = False
{bind}
    for k in range(start, stop):
        progress[slot] = k
        i = np.uintp(ids[k])  # unsigned: it does not count from the end
        env = records[i]
        rng = rng_at(words[i])
        obs = {obs}
        if over[i]:
            reset(env, rng, obs)
{begin_in_step}
            continue
        gain, ended = step(env, {action}, rng, obs)
        if not isfinite(gain):
            if strict and gain > 0:  # the text is complete, or putting it together would take numba
                raise SpecError("reward: expected a finite number, got inf")
            if strict and gain < 0:
                raise SpecError("reward: expected a finite number, got -inf")
            if strict:
                raise SpecError("reward: expected a finite number, got nan")
            strange = True
        count = steps[i] + 1
        cut = count >= limit
        reward[i] = gain
        elapsed[i] = count
        terminated[i] = ended
        truncated[i] = cut
        first[i] = False
        if ended or cut:
            ends[slot] += 1
            if mode == 0:
                over[i] = True
            elif mode == 1:
{keep_final}
                reset(env, rng, obs)
                first[i] = True
                count = 0
        steps[i] = count
{report}
    if strange:
        odd[0] = 1


def serve_rows(bell_at, slot, looks):
    bell = array_at(bell_at, (BELL_WORDS,), np.int64)
    left = looks
    while True:
        posted = read_word(bell, POSTED)
        if posted == read_word(bell, DONE):
            left -= 1
            if left < 0:
                return
            continue
        step_rows(np.uint64(bell[TABLE]), np.uint64(bell[IDS]), bell[START], bell[STOP], slot)
        write_word(bell, DONE, posted)
        left = looks


def reset_rows(table_at, ids_at, start, stop, slot):
{table}
    ids = array_at(ids_at, (stop,), np.int32)
    n = np.int64(table[0])
    strange = False
{bind}
    for k in range(start, stop):
        progress[slot] = k
        i = np.uintp(ids[k])  # unsigned: it does not count from the end
        env = records[i]
        obs = {obs}
        reset(env, rng_at(words[i]), obs)
{begin}
    if strange:
        odd[0] = 1
"""
