"""A pool inside compiled JAX code gives what it gives outside. Run by ``test_envpool_xla.py``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.errors import StateError, XlaUnavailable
from shoal.testing.structured import TextEnv

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = 60
DOORS: list[Callable[..., Any]] = [shoal.make_gymnasium, shoal.make_gym, shoal.make_dm]


def actions(num_envs: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(0, 2, (STEPS, num_envs)).astype(np.int32)


def loop_outside(envs: Any, acts: Any) -> list[Any]:
    envs.reset()
    return [envs.step(action) for action in acts]


@pytest.mark.parametrize("door", DOORS)
def test_a_scan_gives_the_rows_of_a_loop(door: Callable[..., Any]) -> None:
    acts = actions(3)
    expected = loop_outside(door("CartPole-v1", num_envs=3, seed=5), acts)
    envs = door("CartPole-v1", num_envs=3, seed=5)
    envs.reset()
    handle, _, _, step = envs.xla()
    _, got = jax.jit(lambda h, a: jax.lax.scan(lambda h, action: step(h, action), h, a))(handle, jnp.asarray(acts))
    stacked = jax.tree.map(lambda *rows: np.stack(rows), *expected)
    assert jax.tree.structure(got) == jax.tree.structure(stacked)
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(stacked), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_actions_may_come_in_a_dict() -> None:
    expected = loop_outside(shoal.make_gymnasium("CartPole-v1", num_envs=3, seed=5), actions(3)[:2])[-1]
    envs = shoal.make_gymnasium("CartPole-v1", num_envs=3, seed=5)
    envs.reset()
    handle, _, _, step = envs.xla()
    for row in actions(3)[:2]:
        given = {"action": jnp.asarray(row), "env_id": jnp.arange(3, dtype=jnp.int32)}
        handle, got = jax.jit(step)(handle, given)
    np.testing.assert_array_equal(got[0], expected[0])


def test_send_and_recv_inside_a_loop_take_only_the_envs_that_are_ready() -> None:
    envs = shoal.make_gymnasium("CartPole-v1", num_envs=6, batch_size=2, seed=1)
    envs.async_reset()
    handle, recv, send, _ = envs.xla()

    def turn(_: Any, carry: Any) -> Any:
        handle, seen = carry
        handle, (_, _, _, _, info) = recv(handle)
        ids = info["env_id"]
        handle = send(handle, jnp.zeros(2, jnp.int32), ids)
        return handle, seen.at[ids].add(1)

    _, seen = jax.jit(lambda h: jax.lax.fori_loop(0, 30, turn, (h, jnp.zeros(6, jnp.int32))))(handle)
    assert seen.tolist() == [10] * 6


def test_each_call_returns_another_handle() -> None:
    envs = shoal.make_gymnasium("CartPole-v1", num_envs=2)
    envs.reset()
    handle, _, _, step = envs.xla()
    assert (handle.shape, handle.dtype) == ((8,), jnp.uint8)
    first, _ = jax.jit(step)(handle, jnp.zeros(2, jnp.int32))
    second, _ = jax.jit(step)(first, jnp.zeros(2, jnp.int32))
    assert len({bytes(np.asarray(h)) for h in (handle, first, second)}) == 3


def test_info_fields_of_compiled_envs_come_along() -> None:
    envs = shoal.make_gymnasium("Acrobot-v1", num_envs=2)
    envs.reset()
    handle, _, _, step = envs.xla()
    _, (_, _, _, _, info) = jax.jit(step)(handle, jnp.zeros(2, jnp.int32))
    assert info["state"].shape == (2, 2)


def test_a_bad_action_is_an_error_and_the_pool_goes_on() -> None:
    envs = shoal.make_gymnasium("CartPole-v1", num_envs=2)
    envs.reset()
    handle, _, send, _ = envs.xla()
    with pytest.raises(Exception, match="outside"):
        jax.block_until_ready(jax.jit(send)(handle, jnp.full(2, 7, jnp.int32)))
    assert envs.step(np.zeros(2, np.int32))[4]["elapsed_step"].tolist() == [1, 1]


def test_observations_that_are_no_arrays_are_refused() -> None:
    shoal.register("XlaText-v0", TextEnv)
    with shoal.make_gymnasium("XlaText-v0", engine="serial") as envs, pytest.raises(StateError, match="not arrays"):
        envs.xla()


def test_without_jax_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(XlaUnavailable, match=r"XLA is unavailable.*shoal\[jax\]"):
        shoal.make_gymnasium("CartPole-v1").xla()
