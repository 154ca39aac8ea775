"""``xla()``, in a process of its own: a process that has imported JAX can no longer fork, and other tests do.

What is called ``case_...`` here runs there, too.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple

import shoal
from shoal.errors import WrongDtype, WrongShape
from shoal.testing import DictTupleEnv, SampleEnv

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = Path(__file__).with_name("xla_cases.py")
DOORS: list[Callable[..., Any]] = [shoal.make_gymnasium, shoal.make_gym, shoal.make_dm]
WRAPS: list[Callable[..., Any]] = [lambda action: action, lambda action: {"action": action}]


def run_apart(*arguments: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.slow
def test_pools_inside_compiled_jax_code() -> None:
    run_apart(str(CASES))


@pytest.mark.slow
def test_actions_inside_compiled_jax_code_are_checked() -> None:
    run_apart("-o", "python_functions=case_*", __file__)


@pytest.fixture
def jax() -> Any:
    return importlib.import_module("jax")


@pytest.mark.parametrize("wrap", WRAPS, ids=["array", "dict"])
@pytest.mark.parametrize("door", DOORS)
def case_types_and_shapes_are_exact_and_nothing_moves(jax: Any, door: Any, wrap: Any) -> None:
    jnp = jax.numpy
    with door("CartPole-v1", num_envs=2) as envs:
        handle, _, send, step = envs.xla()
        for call in (send, step, jax.jit(send), jax.jit(step)):
            with pytest.raises(WrongDtype, match='Expected dtype int32 with action "action", got float32'):
                call(handle, wrap(jnp.ones(2)))
            with pytest.raises(WrongShape, match=r'Expected shape \(-1,\) with action "action", got \(2, 1\)'):
                call(handle, wrap(jnp.ones((2, 1), jnp.int32)))
        assert envs.stats().steps == 0
        jax.block_until_ready(step(handle, wrap(jnp.ones(2, jnp.int32))))


@pytest.mark.parametrize("wrap", WRAPS, ids=["array", "dict"])
def case_continuous_actions_are_exact_too(jax: Any, wrap: Any) -> None:
    jnp = jax.numpy
    with shoal.make_gymnasium("Pendulum-v1", num_envs=2) as envs:
        handle, _, send, step = envs.xla()
        with pytest.raises(WrongDtype, match="Expected dtype float32"):
            send(handle, wrap(jnp.zeros((2, 1), jnp.int32)))
        for shape in ((2,), (2, 2), ()):
            with pytest.raises(WrongShape, match=r"Expected shape \(-1, 1\)"):
                send(handle, wrap(jnp.zeros(shape)))
        jax.block_until_ready(step(handle, wrap(jnp.zeros((2, 1)))))


def case_ids_in_a_dict_are_checked_too(jax: Any) -> None:
    jnp = jax.numpy
    with shoal.make_gymnasium("CartPole-v1", num_envs=2) as envs:
        handle, _, send, _ = envs.xla()
        ids = jnp.arange(2, dtype=jnp.int32)
        with pytest.raises(WrongDtype, match='Expected dtype int32 with action "env_id", got float32'):
            send(handle, {"action": ids, "env_id": jnp.zeros(2)})
        with pytest.raises(WrongShape, match=r'with action "players\.env_id"'):
            send(handle, {"action": ids, "env_id": ids, "players": {"env_id": ids[None]}})


@pytest.mark.parametrize(("key", "name"), [("mix.1", "mix.1"), ("action", "action.mix.1"), ("mix", "mix.1")])
def case_parts_are_checked_by_their_names(jax: Any, key: str, name: str) -> None:
    jnp = jax.numpy

    def parts(last: Any) -> Any:
        mix = (jnp.zeros((2, 2), jnp.int8), last)
        whole = {"gear": jnp.zeros(2, jnp.int32), "force": jnp.zeros((2, 2)), "mix": mix}
        dotted = {**whole, "mix.0": mix[0], "mix.1": mix[1]}
        del dotted["mix"]
        return {"mix.1": dotted, "action": {"action": whole}, "mix": whole}[key]

    with shoal.make_gymnasium(DictTupleEnv, num_envs=2, engine="serial") as envs:
        handle, _, send, step = envs.xla()
        with pytest.raises(WrongDtype, match=f'Expected dtype int32 with action "{name}", got float32'):
            send(handle, parts(jnp.zeros(2)))
        jax.block_until_ready(step(handle, parts(jnp.zeros(2, jnp.int32))))
        assert envs.stats().steps == 2


def case_a_tuple_of_actions_is_checked(jax: Any) -> None:
    jnp = jax.numpy
    pair = Tuple((Discrete(2), Box(-1, 1, (2,), np.float32)))
    with shoal.make_gymnasium(lambda: SampleEnv(Discrete(2), pair), num_envs=2, engine="serial") as envs:
        handle, _, send, step = envs.xla()
        with pytest.raises(WrongShape, match=r'Expected shape \(-1, 2\) with action "1", got \(2, 3\)'):
            send(handle, (jnp.zeros(2, jnp.int32), jnp.zeros((2, 3))))
        jax.block_until_ready(step(handle, (jnp.zeros(2, jnp.int32), jnp.zeros((2, 2)))))


@pytest.mark.parametrize("action", [np.ones(2), np.ones(2, np.int64), [1, 1]], ids=["float", "int", "list"])
def case_what_is_not_jaxs_is_cast_as_outside(jax: Any, action: Any) -> None:
    with shoal.make_gymnasium("CartPole-v1", num_envs=2) as envs:
        handle, _, _, step = envs.xla()
        jax.block_until_ready(step(handle, action))
        assert envs.stats().steps == 2


@pytest.mark.parametrize("wrap", WRAPS, ids=["array", "dict"])
def case_float64_is_float32_where_jax_has_no_other(jax: Any, wrap: Any) -> None:
    wide = Box(-1, 1, (2,), np.float64)
    with shoal.make_gymnasium(lambda: SampleEnv(wide, wide), num_envs=3, engine="serial") as envs:
        assert envs.spec.action_array_spec["action"].dtype == np.float64
        handle, _, send, step = envs.xla()
        with pytest.raises(WrongDtype, match="Expected dtype float32"):
            send(handle, wrap(jax.numpy.zeros((3, 2), np.int32)))
        for call in (step, jax.jit(step)):
            jax.block_until_ready(call(handle, wrap(jax.numpy.zeros((3, 2)))))
        assert envs.stats().steps == 6
