"""TorchRL's dialect: Gymnasium spaces as specs, and back."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

import numpy as np  # noqa: E402
from gymnasium import spaces  # noqa: E402

from shoal.errors import SpecError  # noqa: E402
from shoal.faces.torchrl import (  # noqa: E402
    Binary,
    Bounded,
    Categorical,
    Composite,
    GymWrapper,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    Stacked,
    TensorSpec,
    Unbounded,
    gym_to_torchrl_spec_transform,
    register_gym_spec_conversion,
    torchrl_to_gym_spec_transform,
)

BOTH_WAYS = [
    (spaces.Box(-1, 1, (2,)), Bounded(-1, 1, shape=(2,))),
    (spaces.Box(-np.inf, np.inf, (2,)), Unbounded((2,))),
    (spaces.Box(0, 255, (4, 4, 3), np.uint8), Unbounded((4, 4, 3), dtype=torch.uint8)),
    (spaces.Box(0, 1, (2,), bool), Unbounded((2,), dtype=torch.bool)),
    (spaces.Box(0, 7, (2,), np.int32), Bounded(0, 7, shape=(2,), dtype=torch.int32)),
    (spaces.Discrete(3), OneHot(3, dtype=torch.int64)),
    (spaces.MultiDiscrete([3, 2]), MultiOneHot((3, 2), dtype=torch.int64)),
    (spaces.MultiDiscrete([2, 2]), OneHot(2, shape=(2, 2), dtype=torch.int64)),
    (spaces.MultiBinary(4), Binary(4)),
    (spaces.MultiBinary((2, 3)), Binary(shape=(2, 3))),
    (spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1)), None),
]


@pytest.mark.parametrize(("space", "spec"), BOTH_WAYS, ids=str)
def test_a_space_becomes_its_spec_and_the_spec_the_space(space: spaces.Space[Any], spec: TensorSpec | None) -> None:
    made = gym_to_torchrl_spec_transform(space)
    assert spec is None or made == spec
    assert torchrl_to_gym_spec_transform(made) == space
    space.seed(3)
    for _ in range(10):
        value = space.sample()
        encoded = made.encode(value)
        assert made.is_in(encoded)
        assert made.is_in(made.rand())


def test_choices_as_integers() -> None:
    def made(space: spaces.Space[Any]) -> TensorSpec:
        return gym_to_torchrl_spec_transform(space, categorical_action_encoding=True)

    assert made(spaces.Discrete(3)) == Categorical(3)
    assert made(spaces.MultiDiscrete([2, 2])) == Categorical(2, shape=(2,))
    assert made(spaces.MultiDiscrete([2, 3])) == MultiCategorical((2, 3))
    assert made(spaces.MultiDiscrete([[2, 3], [4, 5]])) == MultiCategorical(((2, 3), (4, 5)))


def test_a_choice_that_starts_elsewhere_goes_there_and_back() -> None:
    class Shifted:
        """Tells the action it got."""

        observation_space = spaces.Discrete(3, start=-1)
        action_space = spaces.Discrete(3, start=5)
        metadata: dict[str, Any] = {}
        render_mode = spec = None
        unwrapped = property(lambda self: self)

        def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
            return 1, {}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            return -1, float(action), False, False, {}

        def close(self) -> None: ...

    env = GymWrapper(Shifted(), categorical_action_encoding=True)
    td = env.reset()
    assert td["observation"].item() == 2
    td["action"] = torch.tensor(2)
    stepped = env.step(td)["next"]
    assert stepped["reward"].item() == 7
    assert stepped["observation"].item() == 0


def test_boxes_without_dims_have_one() -> None:
    assert gym_to_torchrl_spec_transform(spaces.Box(0, 1, ())).shape == (1,)


def test_dicts_tuples_texts_and_sequences() -> None:
    named = gym_to_torchrl_spec_transform(spaces.Dict(state=spaces.Box(0, 1), extra=spaces.Text(3)))
    assert isinstance(named, Composite)
    assert set(named.keys()) == {"observation", "extra"}
    assert isinstance(named["extra"], NonTensor)
    kept = gym_to_torchrl_spec_transform(spaces.Dict(state=spaces.Box(0, 1)), remap_state_to_observation=False)
    assert set(kept.keys()) == {"state"}
    same = gym_to_torchrl_spec_transform(spaces.Tuple([spaces.Discrete(3)] * 2))
    assert same == OneHot(3, shape=(2, 3), dtype=torch.int64)
    bounds = gym_to_torchrl_spec_transform(spaces.Tuple([spaces.Box(0, 1), spaces.Box(0, 2)]))
    assert isinstance(bounds, Stacked)
    assert bounds.shape == (2, 1)
    mixed = gym_to_torchrl_spec_transform(spaces.Tuple([spaces.Discrete(3), spaces.Box(0, 2)]))
    assert set(mixed.keys()) == {"0", "1"}
    assert gym_to_torchrl_spec_transform(spaces.Sequence(spaces.Box(0, 2, (3,)), stack=True)).shape == (-1, 3)
    assert gym_to_torchrl_spec_transform(spaces.Discrete(3), batch_size=(4,)).shape == (4, 3)


def test_unknown_spaces_name_the_way_out() -> None:
    class Odd(spaces.Space[Any]):
        pass

    with pytest.raises(SpecError, match="Odd: see register_gym_spec_conversion"):
        gym_to_torchrl_spec_transform(Odd())

    @register_gym_spec_conversion(Odd)
    def odd_spec(space: Odd, **kwargs: Any) -> TensorSpec:
        return Unbounded((7,))

    assert gym_to_torchrl_spec_transform(Odd()).shape == (7,)
    assert gym_to_torchrl_spec_transform(spaces.Dict(odd=Odd()))["odd"].shape == (7,)
