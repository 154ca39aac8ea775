"""Readers of infos."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gym_cases import Echo, Telling
from tensordict import TensorDict

from shoal.errors import ArgumentError, StateError
from shoal.faces.torchrl import (
    BaseInfoDictReader,
    Composite,
    GymWrapper,
    NonTensor,
    Unbounded,
    check_env_specs,
    default_info_dict_reader,
)


def test_infos_are_ignored_unless_asked_for() -> None:
    assert list(GymWrapper(Telling()).observation_spec.keys()) == ["observation"]


def test_everything_is_read_by_default_but_what_is_private() -> None:
    env = GymWrapper(Telling())
    assert env.set_info_dict_reader() is env
    assert set(env.observation_spec.keys()) == {"observation", "k", "late", "count", "nested"}
    check_env_specs(env)
    td = env.rollout(3)
    assert td["next", "k"].tolist() == [1, 2, 3]
    assert td["k"].tolist() == [0, 1, 2]
    assert td["next", "late"].shape == (3, 1)
    assert td["next", "count"].dtype is torch.int64
    assert td["next", "nested", "x"].tolist() == [2, 4, 6]
    everything = GymWrapper(Telling()).set_info_dict_reader(ignore_private=False)
    assert "_private" in everything.observation_spec.keys()  # noqa: SIM118


def test_some_keys() -> None:
    env = GymWrapper(Telling()).set_info_dict_reader(default_info_dict_reader(["k", "late", "never"]))
    check_env_specs(env)
    assert env.observation_spec["k"] == Unbounded(())
    td = env.rollout(2)
    assert td["late"].tolist() == [0, 1]
    assert td["never"].tolist() == [0, 0]


def test_specs_decide_dtype_and_shape() -> None:
    for spec in (
        [Unbounded((1,), dtype=torch.float64)],
        {"k": Unbounded((1,), dtype=torch.float64)},
        Composite(k=Unbounded((1,), dtype=torch.float64)),
    ):
        env = GymWrapper(Telling()).set_info_dict_reader(default_info_dict_reader(["k"], spec))
        check_env_specs(env)
        assert env.reset()["k"].dtype is torch.float64
        assert env.reset()["k"].shape == (1,)
    with pytest.raises(ArgumentError, match="2 specs do not fit 1 keys"):
        default_info_dict_reader(["k"], [Unbounded(()), Unbounded(())])
    with pytest.raises(ArgumentError, match="needs keys"):
        default_info_dict_reader(spec=[Unbounded(())])


def test_float64_infos_keep_to_the_spec() -> None:
    class Doubtful(Telling):
        def reset(self, **kwargs: Any) -> Any:
            obs, _ = super().reset(**kwargs)
            return obs, {"k": np.float64(0.5)}

    env = GymWrapper(Doubtful()).set_info_dict_reader(default_info_dict_reader(["k"]))
    check_env_specs(env)


def test_texts_are_not_tensors() -> None:
    class Talking(Echo):
        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], {"said": "hello"}

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"said": f"step {self.steps}"}

    env = GymWrapper(Talking()).set_info_dict_reader()
    assert isinstance(env.observation_spec["said"], NonTensor)
    td = env.rand_step(env.reset())
    assert td["said"] == "hello"
    assert td["next", "said"] == "step 1"


def test_any_callable_will_do_and_there_may_be_several() -> None:
    env = GymWrapper(Telling())
    env.set_info_dict_reader(lambda info, td: td.set("double", 2 * torch.as_tensor(info["k"])))
    env.set_info_dict_reader(default_info_dict_reader(["k"]))
    assert len(env.info_dict_reader) == 2
    td = env.rollout(2)
    assert td["next", "double"].tolist() == [2, 4]
    assert td["next", "k"].tolist() == [1, 2]


def test_a_reader_brings_its_specs() -> None:
    class Counting(BaseInfoDictReader):
        def __call__(self, info_dict: Any, tensordict: Any) -> Any:
            return tensordict.set("entries", torch.tensor([len(info_dict)]))

        @property
        def info_spec(self) -> Any:
            return {"entries": Unbounded((1,), dtype=torch.int64)}

    env = GymWrapper(Telling()).set_info_dict_reader(Counting())
    check_env_specs(env)
    assert env.rollout(1)["next", "entries"].item() == 5


def test_registering_by_itself() -> None:
    env = GymWrapper(Telling()).auto_register_info_dict()
    check_env_specs(env)
    assert {"k", "late"} <= set(env.observation_spec.keys())
    with pytest.raises(StateError, match="already"):
        env.auto_register_info_dict()


def test_what_is_no_dict_is_not_read() -> None:
    reader = default_info_dict_reader(["k"])
    td = GymWrapper(Telling()).reset()
    with pytest.warns(UserWarning, match="expected a dict"):
        reader(3, td)  # type: ignore[arg-type]


def test_a_reader_by_itself_reads_what_it_sees_first() -> None:
    reader = default_info_dict_reader()
    assert set(reader({"lives": 3, "_private": 1}, TensorDict()).keys()) == {"lives"}
    assert reader({}, TensorDict())["lives"] == 0
