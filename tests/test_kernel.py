"""What an author of a kernel env declares, and what is said about a declaration that makes no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from shoal.errors import ArgumentError, ShoalError, SpecError
from shoal.kernel import KernelEnv, checked_cast, leaves_tuple
from shoal.spec import Field


class Walk(KernelEnv):
    """A sound env, which the tests take apart."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Discrete(2)
    state = {"x": np.float64, "grid": (np.int8, (2, 3)), "row": (np.float32, 4)}
    info = {"far": np.bool_, "pair": (np.int64, 2)}
    constants = {"gain": 1.0, "steps": 3, "table": np.array([1.0, 2.0])}
    reset_options = {"origin": 0.5}
    max_episode_steps = 100

    def reset(env: Any, rng: Any, obs: Any) -> None:
        obs[0] = 0.0

    def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
        return 1.0, False


def changed(**attributes: Any) -> KernelEnv:
    """Walk with other declarations."""
    return type("Walk", (Walk,), attributes)()


# ---------------------------------------------------------------------- what is declared


def test_a_record_has_every_field_with_its_type_and_shape() -> None:
    dtype = Walk().record_dtype()
    found = {name: (dtype[name].base.name, dtype[name].shape) for name in dtype.names or ()}
    assert found == {
        "x": ("float64", ()),
        "grid": ("int8", (2, 3)),
        "row": ("float32", (4,)),
        "far": ("bool", ()),
        "pair": ("int64", (2,)),
        "gain": ("float64", ()),
        "steps": ("int64", ()),
        "table": ("float64", (2,)),
        "origin": ("float64", ()),
    }


def test_records_hold_the_constants_and_zeros() -> None:
    records = Walk(gain=7.5).records(3)
    assert records["gain"].tolist() == [7.5] * 3
    assert records["table"].tolist() == [[1.0, 2.0]] * 3
    assert records["origin"].tolist() == [0.5] * 3
    assert not records["x"].any()
    assert not records["grid"].any()


def test_info_fields_are_columns() -> None:
    assert Walk().info_fields() == (Field("far", np.dtype(bool), ()), Field("pair", np.dtype(np.int64), (2,)))


def test_functions_are_written_without_self() -> None:
    obs = np.ones(1)
    assert Walk().step(None, 0, None, obs) == (1.0, False)
    Walk.reset(None, None, obs)
    assert obs[0] == 0.0


def test_an_inherited_function_is_still_one_without_self() -> None:
    class Longer(Walk):
        max_episode_steps = 1000

    assert Longer().step(None, 0, None, None) == (1.0, False)


def test_a_function_may_be_a_staticmethod_already() -> None:
    class Marked(Walk):
        @staticmethod
        def step(env: Any, action: Any, rng: Any, obs: Any) -> tuple[float, bool]:
            return 2.0, True

    assert Marked().step(None, 0, None, None) == (2.0, True)


def test_keywords_replace_constants_and_leave_the_class_alone() -> None:
    kind = Walk(gain=2, steps=9)
    assert (kind.constants["gain"], kind.constants["steps"]) == (2.0, 9)
    assert type(kind.constants["gain"]) is float, "or every whole number would have to be compiled anew"
    assert Walk.constants["gain"] == 1.0
    assert Walk().constants["gain"] == 1.0
    assert "gain=2.0" in repr(kind)


@pytest.mark.parametrize("given", [np.float32(2.0), np.int32(2), True, 2])
def test_a_number_of_any_type_will_do_for_a_float_constant(given: Any) -> None:
    assert Walk(gain=given).record_dtype() == Walk().record_dtype()


@pytest.mark.parametrize("given", [np.int32(4), np.int8(4), np.uint8(4)])
def test_a_whole_number_of_any_type_will_do_for_a_whole_constant(given: Any) -> None:
    assert Walk(steps=given).record_dtype() == Walk().record_dtype()


def test_a_list_will_do_for_an_array_and_whole_numbers_for_floats_in_it() -> None:
    assert Walk(table=[3, 4]).record_dtype() == Walk().record_dtype()


def test_render_modes_follow_from_the_renderer() -> None:
    assert Walk().metadata["render_modes"] == []
    assert changed(gymnasium_id="CartPole-v1").metadata["render_modes"] == ["rgb_array"]


def test_a_sound_kind_passes() -> None:
    Walk().check()


# ---------------------------------------------------------------------- what makes no sense


def test_an_unknown_keyword_is_named_beside_those_that_exist() -> None:
    with pytest.raises(ArgumentError, match=r"Walk: no constant called gravity, mass; it has \['gain', 'steps', "):
        Walk(mass=1.0, gravity=2.0)
    with pytest.raises(ArgumentError, match="it has none"):
        type("Bare", (Walk,), {"constants": {}})(mass=1.0)


@pytest.mark.parametrize("missing", ["observation_space", "action_space", "reset", "step"])
def test_what_is_missing_is_named(missing: str) -> None:
    whole = {
        "observation_space": Walk.observation_space,
        "action_space": Walk.action_space,
        "state": {"x": np.float64},
        "reset": Walk.reset,
        "step": Walk.step,
    }
    del whole[missing]
    with pytest.raises(SpecError, match=f"Half: {missing} is missing"):
        type("Half", (KernelEnv,), whole)().check()


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"observation_space": spaces.Text(3)}, "Walk.observation_space: Text cannot be compiled"),
        ({"action_space": spaces.Sequence(spaces.Discrete(2))}, "Walk.action_space: Sequence cannot be compiled"),
        ({"action_space": spaces.Dict(a=spaces.Dict(b=spaces.Discrete(2)))}, r"action_space\['a'\]: Dict cannot"),
        ({"action_space": spaces.Tuple((spaces.Discrete(2), spaces.Text(2)))}, r"action_space\[1\]: Text cannot"),
        ({"observation_space": spaces.Dict({"a b": spaces.Discrete(2)})}, "key 'a b' cannot be a name"),
        ({"observation_space": spaces.Dict({"_a": spaces.Discrete(2)})}, "key '_a' cannot be a name"),
        ({"observation_space": spaces.Dict({"class": spaces.Discrete(2)})}, "key 'class' cannot be a name"),
        ({"observation_space": spaces.Dict({})}, "Walk.observation_space.*empty"),
        ({"action_space": spaces.Tuple(())}, "Walk.action_space.*empty"),
        ({"observation_space": None}, "Walk.observation_space: NoneType cannot"),
        ({"info": {"x": np.float64}}, r"Walk: field 'x' is declared more than once"),
        ({"constants": {"origin": 1.0}}, r"'origin' is declared more than once"),
        ({"state": {"a b": np.float64}}, r"Walk: field 'a b' cannot be a name"),
        ({"state": {"_x": np.float64}}, r"'_x' cannot be a name"),
        ({"state": {"lambda": np.float64}}, r"'lambda' cannot be a name"),
        ({"state": {1: np.float64}}, "1 cannot be a name"),
        ({"state": {"x": "nonsense"}}, "Walk.*x"),
        ({"state": {"x": object}}, "Walk.*x"),
        ({"state": {"x": "U5"}}, "Walk.*x"),
        ({"info": {"x2": "U5"}}, "Walk.*x2"),
        ({"state": {"x": (np.float64, -1)}}, "Walk.*x"),
        ({"state": {"x": (np.float64, "wide")}}, "Walk.*x"),
        ({"constants": {"gain": None}}, "Walk.*gain"),
        ({"constants": {"gain": "much"}}, "Walk.*gain"),
        ({"constants": {"gain": {"a": 1}}}, "Walk.*gain"),
        ({"reset_options": {"origin": "here"}}, "Walk.*origin"),
        ({"state": {"x": np.float16}}, "Walk: field 'x': numba has no float16; use float32"),
        ({"constants": {"gain": np.float16(1.0)}}, "Walk: field 'gain': numba has no float16; use float32"),
        ({"action_space": spaces.Box(-1, 1, (1,), np.float16)}, "Walk.action_space: numba has no float16; use float32"),
        (
            {"observation_space": spaces.Tuple([spaces.Box(0, 1, (1,), np.float16)])},
            r"space\[0\]: numba has no float16",
        ),
        ({"state": {"render_mode": np.int64}}, "render_mode"),
        ({"state": {"np_random": np.int64}}, "np_random"),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_declaration_that_makes_no_sense_is_refused_by_class_and_field(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(SpecError, match=told):
        changed(**declared).check()


def test_a_key_may_be_a_method_of_tuples() -> None:
    group = leaves_tuple(spaces.Dict(count=spaces.Discrete(2), index=spaces.Discrete(2)), "Obs")
    assert group(3, 4).count == 3
    assert group(3, 4).index == 4


def test_a_kind_without_fields_is_refused() -> None:
    with pytest.raises(SpecError, match="Walk: declare at least one field of state"):
        changed(state={}, info={}, constants={}, reset_options={}).check()


@pytest.mark.parametrize("value", [None, "much", [1, 2, 3], {"a": 1}])
def test_a_keyword_of_another_sort_than_its_constant_is_refused(value: Any) -> None:
    """A list of three where there were two would be another record; a word is none at all."""
    with pytest.raises(ShoalError, match="table"):
        Walk(table=value).check()


@pytest.mark.parametrize(
    ("default", "given", "dtype"),
    [
        (np.int16(5), 70_000, "int16"),
        (np.int16(5), np.int64(-40_000), "int16"),
        (np.float32(1.0), 1e300, "float32"),
        (np.array([1, 2], np.int8), [3, 400], "int8"),
    ],
)
def test_a_constant_that_would_become_another_number_is_refused(default: Any, given: Any, dtype: str) -> None:
    kind = type("Walk", (Walk,), {"constants": {"gain": default}})
    with pytest.raises(ArgumentError, match=f"gain: expected a number that fits {dtype}, got "):
        kind(gain=given)


@pytest.mark.parametrize(
    ("given", "dtype"),
    [(5, np.int16), (5.0, np.int64), (True, np.int8), (0.1, np.float32), (np.inf, np.float32), (2**63, np.uint64)],
)
def test_a_number_that_fits_is_cast(given: Any, dtype: Any) -> None:
    cast = checked_cast("x", given, np.dtype(dtype))
    assert (cast.dtype, cast) == (dtype, dtype(given))


@pytest.mark.parametrize("given", [2.7, np.nan, np.inf, "7", None, 2**70, 2**63, [1, 2.5]])
def test_what_an_integer_cannot_be_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match="x: expected a number that fits int64, got "):
        checked_cast("x", given, np.dtype(np.int64))
