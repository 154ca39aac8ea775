"""An env of TensorDicts in a slot of a pool, and the rows of bytes in which its data crosses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_envs import Adder, Story, Walk, assert_same

from shoal.adapters.byte_rows import ByteRow, RowBuffer
from shoal.adapters.tensordict_env import APPLY, LOOSE, NEXT_ROW, AnyObject, Wish
from shoal.errors import ActionError, SpecError
from shoal.faces.torchrl import EnvMetaData, GymEnv
from shoal.faces.torchrl.batched.crossing import Traffic, crossings_of
from shoal.faces.torchrl.batched.presets import PRESETS, PresetEnv

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]
LEAVES = st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3)), max_size=5)


def some(dtype: torch.dtype, shape: list[int], generator: torch.Generator) -> torch.Tensor:
    return (torch.randn(shape, generator=generator) * 50).to(dtype)


# ---------------------------------------------------------------------- rows


@settings(max_examples=30, deadline=None)
@given(leaves=LEAVES, rows=st.integers(1, 4), header=st.integers(0, 20), seed=st.integers(0, 2**31))
def test_what_is_packed_comes_out_again(leaves: list[Any], rows: int, header: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    row = ByteRow([(f"leaf{i}", dtype, shape) for i, (dtype, shape) in enumerate(leaves)], header)
    tensors = [some(dtype, [rows, *shape], generator) for dtype, shape in leaves]
    packed = row.pack(tensors, rows, row.size + 16)
    assert packed.shape == (rows, row.size + 16)
    assert not packed[:, :header].any()
    for sent, got in zip(tensors, row.unpack(packed), strict=True):
        assert got.dtype is sent.dtype
        assert torch.equal(got, sent) or torch.isnan(sent.abs().double()).any()
        assert got.is_contiguous()


@pytest.mark.parametrize(
    "sent",
    [
        torch.randn(4, 6).bfloat16()[:, ::2],
        torch.randn(3, 4).bfloat16().T,
        torch.randn(1, 1).bfloat16().expand(4, 3),
        torch.randn(4, 3, dtype=torch.complex64).conj(),
        torch.randn(4, 3, dtype=torch.complex64).conj().imag,
    ],
    ids=["strided", "transposed", "expanded", "conjugated", "negated"],
)
def test_views_of_any_kind_are_packed(sent: torch.Tensor) -> None:
    row = ByteRow([("leaf", sent.dtype, (3,))])
    assert torch.equal(row.unpack(row.pack([sent], 4))[0], sent)


@settings(max_examples=30, deadline=None)
@given(leaves=LEAVES, seed=st.integers(0, 2**31))
def test_a_row_that_one_env_writes_is_read_by_all(leaves: list[Any], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    row = ByteRow([(f"leaf{i}", dtype, shape) for i, (dtype, shape) in enumerate(leaves)])
    buffer = RowBuffer(row, np.zeros(row.size, np.uint8))
    tensors = [some(dtype, shape, generator) for dtype, shape in leaves]
    buffer.write(tensors)
    for sent, got in zip(tensors, row.unpack(buffer.bytes[None]), strict=True):
        assert torch.equal(got[0], sent)


def test_unpacked_tensors_share_no_memory() -> None:
    row = ByteRow([("x", torch.float32, (2,))])
    packed = row.pack([torch.ones(3, 2)], 3)
    (got,) = row.unpack(packed)
    packed[:] = 0
    assert torch.equal(got, torch.ones(3, 2))


def test_tensors_of_another_shape_are_named() -> None:
    row = ByteRow([("x", torch.float32, (2,))])
    with pytest.raises(ActionError, match=r"'x': expected shape \(3, 2\), got \(3, 1\)"):
        row.pack([torch.ones(3, 1)], 3)
    with pytest.raises(SpecError, match=r"'x': the spec says shape \(2,\), and the env returned \(3,\)"):
        RowBuffer(row, np.zeros(row.size, np.uint8)).write([torch.ones(3)])
    with pytest.raises(SpecError, match=r"'x': the spec says torch.float32, and the env returned torch.complex64"):
        RowBuffer(row, np.zeros(row.size, np.uint8)).write([torch.ones(2, dtype=torch.complex64)])


def test_a_packed_action_is_cast_as_a_buffer_would() -> None:
    row = ByteRow([("x", torch.int64, (1,))])
    (got,) = row.unpack(row.pack([torch.tensor([[2.7]], requires_grad=True)], 1))
    assert got.tolist() == [[2]]


# ---------------------------------------------------------------------- one env in its slot


class Slot:
    """One env behind the adapter, and the pool's side of it."""

    def __init__(self, env: Any, **options: Any) -> None:
        self.env = env
        metas = [EnvMetaData.metadata_from_env(env)]
        (self.crossing,) = crossings = crossings_of(metas, **options)
        self.traffic = Traffic(metas, crossings, None, "as_alike", self._hand_over)
        self.slot = PresetEnv(env, self.crossing)

    def _hand_over(self, ids: Sequence[int], presets: list[Any]) -> None:
        assert list(ids) == [0]
        self.slot.set_wrapper_attr(PRESETS, presets[0])

    def reset(self, **options: Any) -> Any:
        obs, info = self.slot.reset(options=options or None)
        return self._told(obs, info, is_first=True)[0]

    def step(self, td: Any, wish: Wish = Wish.STEP) -> Any:
        rows = self.traffic.pack(td.unsqueeze(0), [0], wish)
        action = (rows[0][0], rows[1][0]) if isinstance(rows, tuple) else rows[0]
        obs, reward, terminated, truncated, info = self.slot.step(action)
        assert (reward, terminated, truncated) == (0.0, False, False)
        following, first = self._told(obs, info, is_first=False)
        return (following, None if first is None else first[0]) if wish else following

    def _told(self, obs: Any, info: dict[str, Any], *, is_first: bool) -> Any:
        from shoal.batch import Batch

        assert self.slot.observation_space.contains(obs)
        nothing = np.zeros(1)
        flags = np.zeros(1, bool)
        batch = Batch(obs[None].copy(), nothing, flags, flags, np.zeros(1, np.int32), np.zeros(1, np.int32), flags)
        batch.infos = [(0, info)] if info else ()
        _, first = self.traffic.unpack_following(batch)
        return self.traffic.unpack(batch, is_first=is_first)[0], first


@pytest.mark.parametrize("way", ["carried", "told", "all_loose"])
@pytest.mark.parametrize(
    "make",
    [
        Walk,
        lambda: Walk(batch_size=(2, 2)),
        lambda: Walk(dtype=torch.bfloat16),
        Adder,
        Story,
        lambda: GymEnv("CartPole-v1"),
    ],
)
def test_the_slot_returns_what_the_env_does(make: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "told":  # as with rows that are too long to be carried along
        monkeypatch.setattr("shoal.faces.torchrl.batched.crossing._MOST_CARRIED_BYTES", 0)
    slot, twin = Slot(make(), all_loose=way == "all_loose"), make()
    assert slot.crossing.carries_next == (way == "carried" and not slot.crossing.loose_outputs)
    slot.env.set_seed(3)
    twin.set_seed(3)
    torch.manual_seed(0)
    here, there = slot.reset(), twin.reset()
    assert_same(here, there)
    for _ in range(8):
        twin.rand_action(there)
        stepped, following = twin.step_and_maybe_reset(there)
        last, first = slot.step(there.exclude("next"), Wish.STEP_AND_MAYBE_RESET)
        assert_same(last, stepped["next"])
        is_over = any(bool(stepped["next"].get(key).any()) for key in twin.done_keys)
        assert (first is not None) == is_over
        if first is not None:
            assert_same(first, following.select(*first.keys()))
        there = following


def test_a_plain_step_leaves_the_end_to_its_caller() -> None:
    slot = Slot(Walk(limit=1))
    td = slot.reset().set("action", torch.zeros(3))
    assert slot.step(td)["done"].item()
    assert slot.step(td)["count"].item() == 2
    assert slot.env.resets == 1


def test_a_mark_leaves_the_env_alone() -> None:
    slot = Slot(Walk())
    assert slot.slot.reset(options={"as_is": True})[1] == {}
    assert slot.env.resets == 0


def test_reset_takes_entries_and_arguments() -> None:
    assert Slot(Adder()).reset(entries={"x": np.array([5.0], np.float32)})["x"].item() == 105
    assert (Slot(Walk()).reset(kwargs={"start": 50.0})["place"] >= 50).all()


def test_an_action_is_the_envs_own() -> None:
    slot = Slot(Walk(limit=9))
    td = slot.reset().set("action", torch.zeros(3))
    slot.step(td)
    td["action"] += 1
    slot.step(td)
    assert [action.tolist() for action in slot.env.actions] == [[0, 0, 0], [1, 1, 1]]


def test_what_has_no_shape_goes_beside_the_row() -> None:
    slot = Slot(Story())
    _, info = slot.slot.reset()
    assert info[LOOSE]["text"] == "step 0"
    assert info[LOOSE]["tokens"].tolist() == [0]
    assert NEXT_ROW not in info


def test_an_env_that_forgets_an_entry_is_told_which() -> None:
    class Forgetful(Walk):
        def _shown(self) -> Any:
            return super()._shown().exclude("count")

    with pytest.raises(KeyError, match="Forgetful has 'count' in its specs and did not return it"):
        Slot(Forgetful()).reset()


def test_attributes_and_functions_reach_the_env() -> None:
    slot = Slot(Walk(limit=7)).slot
    assert slot.get_wrapper_attr("limit") == 7
    slot.set_wrapper_attr("limit", 8)
    assert slot.get_wrapper_attr(APPLY)(lambda env, more: env.limit + more, 2) == 10
    slot.close()
    assert slot.env.is_closed


def test_any_object_is_any_object() -> None:
    assert AnyObject() == AnyObject()
    assert AnyObject().contains(object())
