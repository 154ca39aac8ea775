"""The faults a call returns with: each is as described, at the call it was asked for and at no other."""

from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest

from shoal.testing import (
    FAULT_FAMILIES,
    Fault,
    FaultEnv,
    Place,
    fault_places,
    read_row,
)


def third(fault: str, where: Place = "step", **settings: Any) -> Any:
    """What the third step, or the third reset, returns."""
    env = FaultEnv(fault, where=where, **{"episode_length": 9, **settings})
    if where == "reset":
        return [env.reset(seed=0) for _ in range(3)][-1]
    env.reset(seed=0)
    return [env.step(1) for _ in range(3)][-1]


def test_only_the_asked_for_call_faults() -> None:
    env = FaultEnv("reward_none", at=3, episode_length=2)
    rewards: list[Any] = []
    for _ in range(4):
        env.reset(seed=0)
        rewards += [env.step(0)[1] for _ in range(2)]
    assert rewards == [1, 2, None, 2, 1, 2, 1, 2]


def test_repeat_faults_from_there_on() -> None:
    env = FaultEnv("reward_none", at=3, repeat=True, episode_length=9)
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(5)] == [1, 2, None, None, None]


def test_before_its_fault_the_env_counts_like_any_other() -> None:
    env = FaultEnv("raise", at=4, tag=2, episode_length=9, infos=True)
    env.reset(seed=0)
    for number in (1, 2, 3):
        obs, reward, _, _, info = env.step(0)
        assert (read_row(obs).tag, read_row(obs).total, reward, info["t"]) == (2, number, number, number)


@pytest.mark.filterwarnings("ignore:.*Casting input x:UserWarning")
@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.parametrize("fault", [*FAULT_FAMILIES["obs"], *FAULT_FAMILIES["dict_obs"]])
def test_spoilt_observations_are_not_in_the_space(fault: Fault, where: Place) -> None:
    env = FaultEnv(fault, where=where)
    if fault not in ("nan_obs", "list_obs", "overflow"):
        assert third(fault, where)[0] not in env.observation_space
    assert FaultEnv(fault).reset(seed=0)[0] in env.observation_space


def test_each_observation_is_spoilt_as_its_name_says() -> None:
    assert third("bad_shape")[0].shape == (9,)
    assert third("scalar_obs")[0].shape == ()
    assert third("none_obs")[0] is None
    assert isinstance(third("list_obs")[0], list)
    kinds = [third(fault)[0].dtype.kind for fault in ("bad_dtype", "complex_obs", "str_obs")]
    assert kinds == ["O", "c", "U"]
    assert FaultEnv("overflow").observation_space.dtype == np.float32
    assert (third("overflow")[0] == 1.5e300).all()
    assert np.isnan(third("nan_obs")[0]).sum() == 1
    assert third("nan_obs", dtype="int64")[0].dtype == np.float64
    assert third("missing_key")[0].keys() == {"step"}
    assert third("extra_key")[0].keys() == {"row", "step", "extra"}
    assert third("bad_nesting")[0]["row"].keys() == {"inner"}


def test_each_reward_and_flag_is_spoilt_as_its_name_says() -> None:
    assert third("reward_none")[1] is None
    assert third("reward_str")[1] == "3.0"
    assert np.isnan(third("reward_nan")[1])
    assert np.isinf(third("reward_inf")[1])
    assert third("reward_array")[1].shape == (1,)
    assert type(third("flag_int")[2]) is int
    assert third("flag_none")[2] is None
    assert [type(part) for part in third("four_tuple")[1:]] == [float, bool, dict]


@pytest.mark.parametrize("where", ["reset", "step"])
def test_each_info_is_spoilt_as_its_name_says(where: Place) -> None:
    for fault in ("info_unpicklable", "info_lambda"):
        with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
            pickle.dumps(third(fault, where)[-1])
    assert len(third("info_big", where)[-1]["blob"]) == 50 * 2**20
    assert third("info_none", where)[-1] is None


def test_slow_takes_its_time_and_returns_the_right_row() -> None:
    began = time.monotonic()
    obs, reward, *_ = third("slow", delay_s=0.2)
    assert 0.2 <= time.monotonic() - began < 2
    assert (read_row(obs).step, reward) == (3, 3.0)


def test_spam_reaches_both_streams_and_their_descriptors(capfd: pytest.CaptureFixture[str]) -> None:
    third("print_spam")
    captured = capfd.readouterr()
    for text in (captured.out, captured.err):
        assert text.count("injected fault in step") == 4096
        assert text.count("\x00") == 4096


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"fault": "no_such"}, "fault must be one of raise, .*got 'no_such'"),
        ({"where": "nowhere"}, "where of raise must be one of init, reset, step, close; got 'nowhere'"),
        ({"fault": "reward_nan", "where": "reset"}, "where of reward_nan must be one of step; got 'reset'"),
        ({"fault": "nan_obs", "where": "close"}, "where of nan_obs must be one of reset, step; got 'close'"),
    ],
)
def test_faults_that_cannot_happen_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FaultEnv(**settings)


def test_every_kind_is_in_one_family_and_in_one_table() -> None:
    sorted_kinds = [kind for kinds in FAULT_FAMILIES.values() for kind in kinds]
    assert sorted(sorted_kinds) == sorted(Fault)
    assert all(fault_places(kind) for kind in Fault)
