"""Compiled rows of robots: bit for bit those of the robots' own methods, and used only where they can be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("mujoco.batch")
pytest.importorskip("numba")
from gymnasium import spaces

import shoal
from shoal.envs.mujoco import sim as simulations
from shoal.envs.mujoco.ant import Ant
from shoal.envs.mujoco.humanoid import Humanoid
from shoal.envs.mujoco.planar import HalfCheetah, Hopper, Walker2d
from shoal.errors import EnvStepError, FaultError

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batch import Batch
    from shoal.envs.mujoco.env import MujocoEnv

SOME = [1, 2, 5]
INSIDE = {"exclude_current_positions_from_observation": False}
KINDS: list[tuple[type[MujocoEnv], dict[str, Any]]] = [
    (HalfCheetah, {}),
    (HalfCheetah, {**INSIDE, "forward_reward_weight": 2, "ctrl_cost_weight": 0.3}),
    (Hopper, {}),
    (Hopper, {"healthy_state_range": (-1.0, 1.0), "velocity_range": (-0.5, 0.25), "healthy_reward": 3}),
    (Hopper, {**INSIDE, "terminate_when_unhealthy": False, "healthy_z_range": (1.24, 1.26)}),
    (Walker2d, {}),
    (Walker2d, {**INSIDE, "healthy_angle_range": (-0.05, 0.05), "forward_reward_weight": 0.5}),
    (Ant, {}),
    (Ant, {**INSIDE, "healthy_z_range": (0.5, 0.8), "contact_cost_weight": 0.1, "frame_skip": 2}),
    (Ant, {"use_contact_forces": True, "contact_force_range": (-0.5, 0.2), "terminate_when_unhealthy": False}),
    (Ant, {"include_cfrc_ext_in_observation": False, "forward_reward_weight": 3.0, "main_body": "aux_1"}),
    (Ant, {"use_contact_forces": False}),
    (Ant, {"post_constraint": False}),
]


def played(kind: type[MujocoEnv], kwargs: dict[str, Any], autoreset: str = "next_step") -> list[Batch]:
    """What a pool of six robots gives: steps of all and of some of them, over the ends of many episodes."""
    rng = np.random.default_rng(3)
    with shoal.make_pool(kind, 6, env_kwargs=kwargs, max_episode_steps=9, autoreset=autoreset) as pool:
        batches = [pool.reset(seed=4)]
        shape = pool.spec.action.leaves[0].shape
        for turn in range(40):
            ids = SOME if turn % 3 == 1 else list(range(6))
            low, high = pool.spec.action.leaves[0].low, pool.spec.action.leaves[0].high
            batches.append(
                pool.step(rng.uniform(low, high, (len(ids), *shape)).astype(kwargs.get("action_dtype")), ids)
            )
    return batches


def assert_same(ours: list[Batch], theirs: list[Batch]) -> None:
    for turn, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        for name in ("obs", "reward", "terminated", "truncated", "elapsed_step", "first"):
            np.testing.assert_array_equal(getattr(own, name), getattr(other, name), f"{name} of turn {turn}")
        assert own.fields.keys() == other.fields.keys()
        for name in own.fields:
            np.testing.assert_array_equal(own.fields[name], other.fields[name], f"info {name!r} of turn {turn}")


@pytest.fixture
def no_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Have robots run their own methods from now on."""
    return lambda: monkeypatch.setattr(simulations, "code_for", lambda *_: None)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize(("kind", "kwargs"), KINDS)
def test_the_rows_are_those_of_the_methods(
    kind: type[MujocoEnv], kwargs: dict[str, Any], version: int, dtype: str, no_code: Callable[[], None]
) -> None:
    kwargs = {**kwargs, "version": version, "action_dtype": dtype}
    assert is_compiled(kind, **kwargs)
    compiled = played(kind, kwargs)
    no_code()
    assert_same(compiled, played(kind, kwargs))


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("frame_stack", [1, 3])
def test_the_same_over_boundaries_and_in_stacks(autoreset: str, frame_stack: int, no_code: Callable[[], None]) -> None:
    kwargs = {"frame_stack": frame_stack, "action_dtype": "float32"}
    compiled = played(Hopper, kwargs, autoreset)
    assert any(batch.first.any() for batch in compiled[1:])
    no_code()
    assert_same(compiled, played(Hopper, kwargs, autoreset))


class Fine(HalfCheetah):
    """Its actions are of a space of its own, and more precise than those of others."""

    action_space = spaces.Box(-1.0, 1.0, (6,), np.float64)


def test_costs_have_the_precision_of_the_actions(no_code: Callable[[], None]) -> None:
    assert is_compiled(Fine)
    compiled = played(Fine, {})
    no_code()
    assert_same(compiled, played(Fine, {}))


# ---------------------------------------------------------------------- where it is used


def is_compiled(kind: type[MujocoEnv], **kwargs: Any) -> bool:
    with shoal.make_pool(kind, 2, env_kwargs=kwargs) as pool:
        sim = pool.engine._sim  # type: ignore[attr-defined]
        return sim._compiled is not None


class Lame(HalfCheetah):
    """Begins somewhere else, and is paid and seen like any other."""

    def start(self, rng: np.random.Generator) -> Any:
        return self.qpos0, self.qvel0


class Proud(HalfCheetah):
    """Is paid for something else."""

    def reward(self, d: Any) -> Any:
        return d.qpos[:, 1]


class Bold(Hopper):
    """Is never in danger."""

    def is_healthy(self, d: Any) -> Any:
        return np.ones(len(d.qpos), bool)


class Curious(Ant):
    """Looks at more than it has to, in another order."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fields = ("xquat", "cfrc_ext", "xpos")


class Numb(Ant):
    """Does not know where it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.info = {}


def test_fields_are_found_by_name(no_code: Callable[[], None]) -> None:
    assert is_compiled(Curious)
    compiled = played(Curious, {"action_dtype": "float32"})
    no_code()
    assert_same(compiled, played(Ant, {"action_dtype": "float32"}))


@pytest.mark.parametrize(("kind", "expected"), [(Ant(), True), (Numb(), False)])
def test_what_a_kind_does_not_declare_is_not_written(kind: MujocoEnv, expected: bool) -> None:
    assert (simulations.code_for(kind, kind.describe("").observation) is not None) is expected


@pytest.mark.parametrize(("kind", "expected"), [(Lame, True), (Proud, False), (Bold, False), (Humanoid, False)])
def test_a_kind_with_methods_of_its_own_runs_them(kind: type[MujocoEnv], expected: bool) -> None:
    assert is_compiled(kind) is expected


@pytest.mark.parametrize(
    "kwargs", [{"ctrl_cost_weight": np.float64(0.1)}, {"action_dtype": "float16"}, {"action_dtype": np.longdouble}]
)
def test_other_precisions_are_left_to_numpy(kwargs: dict[str, Any]) -> None:
    assert not is_compiled(HalfCheetah, **kwargs)
    with shoal.make_pool(HalfCheetah, 2, env_kwargs=kwargs) as pool:
        pool.reset(seed=1)
        dtype = kwargs.get("action_dtype", np.float32)
        assert np.isfinite(pool.step(np.full((2, 6), 0.5, dtype)).reward).all()


def test_without_numba_the_methods_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.envs.mujoco.compiled.has_numba", lambda: False)
    assert not is_compiled(HalfCheetah)


class Misfit(HalfCheetah):
    """Says that it observes less than it does."""

    observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float64)


def test_an_observation_of_another_size_is_an_error_and_not_written() -> None:
    assert not is_compiled(Misfit)
    with shoal.make_pool(Misfit, 2) as pool, pytest.raises(FaultError, match=r"Misfit\.observe: expected shape"):
        pool.reset(seed=1)


CART = """<mujoco><worldbody><body><joint name="rail" type="slide" axis="1 0 0"/><geom size=".1"/></body></worldbody>
<actuator><motor joint="rail" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>"""


def test_a_model_with_fewer_joints_than_a_cheetah_is_left_to_numpy() -> None:
    assert not is_compiled(HalfCheetah, xml_file=CART)
    with shoal.make_pool(HalfCheetah, 2, env_kwargs={"xml_file": CART}) as pool:
        assert pool.reset(seed=1).obs.shape == (2, 1)
        assert pool.step(np.ones((2, 1), np.float32)).reward.shape == (2,)


def test_envs_that_fail_keep_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in one simulation leaves the rows of the others what they were."""
    with shoal.make_pool(HalfCheetah, 3) as pool:
        pool.reset(seed=1)
        sim = pool.engine._sim  # type: ignore[attr-defined]
        advance = sim._advance
        monkeypatch.setattr(sim, "_advance", lambda ids, count: advance(ids, count) or {1: RuntimeError("as told")})
        with pytest.raises(EnvStepError, match="as told"):
            pool.step(np.zeros((3, 6), np.float32))
        batch = pool.recv()
        assert batch.env_id.tolist() == [0, 2]
        assert (batch.elapsed_step == 1).all()
