"""Strategies that draw specs of TorchRL's dialect."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from shoal.faces.torchrl import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)

SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
FLOATS = st.sampled_from([torch.float32, torch.float64])
INTEGERS = st.sampled_from([torch.int64, torch.int32, torch.int8, torch.uint8])
NVEC = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def categoricals(draw: Any) -> Categorical:
    n, shape = draw(st.integers(1, 5)), draw(SHAPES)
    mask = draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=n, max_size=n).filter(any)))
    dtype = draw(st.sampled_from([torch.int64, torch.int32, torch.float32]))
    return Categorical(n, shape=shape, dtype=dtype, mask=None if mask is None else torch.tensor(mask))


@st.composite
def one_hots(draw: Any) -> OneHot:
    n, shape = draw(st.integers(1, 5)), draw(SHAPES)
    mask = draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=n, max_size=n).filter(any)))
    dtype = draw(st.sampled_from([torch.bool, torch.int64, torch.float32]))
    return OneHot(n, shape=(*shape, n), dtype=dtype, mask=None if mask is None else torch.tensor(mask))


@st.composite
def bounded(draw: Any) -> Bounded:
    shape = draw(SHAPES)
    if draw(st.booleans()):
        low = draw(st.floats(-1e3, 1e3, width=32))
        return Bounded(low, low + draw(st.floats(0, 1e3, width=32)), shape=shape, dtype=draw(FLOATS))
    low_n = torch.randint(0, 50, shape)
    return Bounded(low_n, low_n + torch.randint(0, 50, shape), shape=shape, dtype=draw(INTEGERS))


UNBOUNDED = st.builds(Unbounded, SHAPES, dtype=st.one_of(FLOATS, INTEGERS, st.just(torch.bool)))
BINARY = st.builds(Binary, shape=SHAPES.filter(bool))


@st.composite
def multis(draw: Any) -> TensorSpec:
    nvec, shape = draw(NVEC), draw(SHAPES)
    masks = draw(st.one_of(st.none(), st.tuples(*(st.lists(st.booleans(), min_size=n, max_size=n) for n in nvec))))
    mask = torch.tensor([bit for part in masks for bit in part]) if masks and all(map(any, masks)) else None
    if draw(st.booleans()):
        return MultiOneHot(nvec, shape=(*shape, sum(nvec)), mask=mask)
    return MultiCategorical(nvec, shape=(*shape, len(nvec)), mask=mask, remove_singleton=False)


LEAVES = st.one_of(categoricals(), one_hots(), bounded(), UNBOUNDED, BINARY, multis())


@st.composite
def composites(draw: Any, shape: tuple[int, ...] | None = None, depth: int = 2) -> Composite:
    """A Composite of a few leaves, each with the batch dims in front, and perhaps another Composite."""
    batch = draw(SHAPES) if shape is None else shape
    leaves = draw(st.lists(LEAVES, min_size=1, max_size=3))
    entries: dict[str, Any] = {f"leaf{i}": leaf.expand(*batch, *leaf.shape) for i, leaf in enumerate(leaves)}
    if depth and draw(st.booleans()):
        entries["group"] = draw(composites(shape=batch, depth=depth - 1))
    return Composite(entries, shape=batch)
