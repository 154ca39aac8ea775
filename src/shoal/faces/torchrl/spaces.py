"""Gymnasium spaces to specs, and back.

    Box            Bounded; Unbounded when it has no bounds but those of its dtype
    Discrete       OneHot, or Categorical
    MultiDiscrete  MultiOneHot, or MultiCategorical; OneHot or Categorical with one more dim when all sizes are equal
    MultiBinary    Binary
    Dict           Composite
    Tuple          its parts stacked; a Composite with keys "0", "1" ... when they cannot be stacked
    Text           NonTensor
    Sequence       the spec of an item with a leading dim of any size

Specs of choices count from 0, whatever the ``start`` of their space: the wrappers of envs, which read and write the
values, add and subtract it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.errors import BackendUnavailable, SpecError
from shoal.faces.torchrl.specs import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    NonTensor,
    OneHot,
    TensorSpec,
    Unbounded,
)
from shoal.faces.torchrl.specs.dtypes import torch_dtype
from shoal.faces.torchrl.specs.stacking import side_by_side

if TYPE_CHECKING:
    from gymnasium import spaces

Conversion = Callable[..., TensorSpec]

# By class, or by the name of a class whose module need not be loaded.
_CONVERSIONS: dict[type | str, Conversion] = {}


def register_gym_spec_conversion(spec_type: type | str) -> Callable[[Conversion], Conversion]:
    """Register the decorated function as the way from a class of spaces to specs.

    The function gets the space, and by name ``dtype``, ``device``, ``categorical_action_encoding``,
    ``remap_state_to_observation`` and ``batch_size``.

    Args:
        spec_type: The class, or its full name (``"package.module.Class"``).

    Example:
        >>> import gymnasium
        >>> class Angle(gymnasium.spaces.Box): ...
        >>> @register_gym_spec_conversion(Angle)
        ... def angle_spec(space, **kwargs):
        ...     return Bounded(-3.15, 3.15, shape=space.shape)
    """

    def register(conversion: Conversion) -> Conversion:
        _CONVERSIONS[spec_type] = conversion
        return conversion

    return register


def gym_to_torchrl_spec_transform(
    space: spaces.Space[Any],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    categorical_action_encoding: bool = False,
    remap_state_to_observation: bool = True,
    batch_size: Any = (),
) -> Any:
    """The spec of a space.

    Args:
        space: The space.
        dtype: The dtype of the leaves; by default that of the space.
        device: The device of the spec.
        categorical_action_encoding: Whether choices are integers; otherwise they are one-hot vectors.
        remap_state_to_observation: Call an entry ``"state"`` of a Dict ``"observation"`` when it has none.
        batch_size: Batch dims to put in front.

    Raises:
        SpecError: There is no conversion for spaces of this class.

    Example:
        >>> from gymnasium.spaces import Discrete
        >>> gym_to_torchrl_spec_transform(Discrete(3)).shape
        torch.Size([3])
    """
    options = {
        "dtype": dtype,
        "device": device,
        "categorical_action_encoding": categorical_action_encoding,
        "remap_state_to_observation": remap_state_to_observation,
    }
    spec = _conversion_of(type(space))(space, batch_size=(), **options)
    return spec.expand(*batch_size, *spec.shape) if batch_size else spec


def _conversion_of(space_type: type) -> Conversion:
    known = {**_gymnasium_conversions(), **_CONVERSIONS}
    for base in space_type.__mro__:
        for name in (base, f"{base.__module__}.{base.__qualname__}"):
            if name in known:
                return known[name]
    raise SpecError(f"no spec for spaces of class {space_type.__qualname__}: see register_gym_spec_conversion")


@cache
def _gymnasium_conversions() -> dict[type | str, Conversion]:
    spaces = _spaces()
    return {
        spaces.Box: _box_spec,
        spaces.Discrete: _discrete_spec,
        spaces.MultiDiscrete: _multi_discrete_spec,
        spaces.MultiBinary: _multi_binary_spec,
        spaces.Dict: _dict_spec,
        spaces.Tuple: _tuple_spec,
        spaces.Text: _text_spec,
        spaces.Sequence: _sequence_spec,
    }


def _spaces() -> Any:
    try:
        from gymnasium import spaces  # loaded only when something is converted
    except ImportError as error:
        raise BackendUnavailable("conversion of spaces needs gymnasium: pip install gymnasium") from error
    return spaces


def _box_spec(space: Any, *, dtype: torch.dtype | None, device: Any, **_: Any) -> TensorSpec:
    kind = torch_dtype(space.dtype) if dtype is None else dtype
    shape = space.shape or (1,)
    low, high = (np.broadcast_to(bound, shape) for bound in (space.low, space.high))
    if _is_everything(low, high, space.dtype):
        return Unbounded(shape, device=device, dtype=kind)
    return Bounded(torch.tensor(low, dtype=kind), torch.tensor(high, dtype=kind), shape, device=device, dtype=kind)


def _is_everything(low: Any, high: Any, dtype: Any) -> bool:
    """Whether the bounds exclude nothing that the dtype can hold."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return bool(high.all() and not low.any())
    if kind not in "iuf":
        return False
    limits = np.finfo(dtype) if kind == "f" else np.iinfo(dtype)
    return bool((low <= limits.min).all() and (high >= limits.max).all())


def _discrete_spec(
    space: Any, *, dtype: torch.dtype | None, device: Any, categorical_action_encoding: bool, **_: Any
) -> TensorSpec:
    kind = torch_dtype(space.dtype) if dtype is None else dtype
    if categorical_action_encoding:
        return Categorical(int(space.n), device=device, dtype=kind)
    return OneHot(int(space.n), device=device, dtype=kind)


def _multi_discrete_spec(
    space: Any, *, dtype: torch.dtype | None, device: Any, categorical_action_encoding: bool, **_: Any
) -> TensorSpec:
    kind = torch_dtype(space.dtype) if dtype is None else dtype
    sizes = np.unique(space.nvec)
    if len(sizes) == 1:
        n = int(sizes[0])
        if categorical_action_encoding:
            return Categorical(n, shape=space.nvec.shape, device=device, dtype=kind)
        return OneHot(n, shape=(*space.nvec.shape, n), device=device, dtype=kind)
    if categorical_action_encoding:
        return MultiCategorical(torch.as_tensor(space.nvec), device=device, dtype=kind, remove_singleton=False)
    return MultiOneHot(space.nvec.reshape(-1).tolist(), device=device, dtype=kind)


def _multi_binary_spec(space: Any, *, dtype: torch.dtype | None, device: Any, **_: Any) -> TensorSpec:
    return Binary(shape=space.shape, device=device, dtype=torch.int8 if dtype is None else dtype)


def _dict_spec(space: Any, *, device: Any, remap_state_to_observation: bool, **options: Any) -> TensorSpec:
    options = {**options, "device": device, "remap_state_to_observation": remap_state_to_observation}
    names = {key: key for key in space.spaces}
    if remap_state_to_observation and "state" in names and "observation" not in names:
        names["state"] = "observation"
    entries = {names[key]: _conversion_of(type(part))(part, **options) for key, part in space.spaces.items()}
    return Composite(entries, device=device)


def _tuple_spec(space: Any, **options: Any) -> TensorSpec:
    parts = [_conversion_of(type(part))(part, **options) for part in space.spaces]
    first = parts[0]
    alike = all((part.shape, part.dtype, type(part)) == (first.shape, first.dtype, type(first)) for part in parts)
    if alike and not isinstance(first, (Composite, NonTensor)):
        return side_by_side(parts, 0)
    return Composite({str(at): part for at, part in enumerate(parts)}, device=options["device"])


def _text_spec(space: Any, *, device: Any, **_: Any) -> TensorSpec:
    # The example has to be a text of the space, because it is what a random action is.
    example = space.character_list[0] * space.min_length
    return NonTensor(shape=(), device=device, example_data=example)


def _sequence_spec(space: Any, **options: Any) -> TensorSpec:
    item = _conversion_of(type(space.feature_space))(space.feature_space, **options)
    spec = item.unsqueeze(0)
    spec.make_neg_dim(0)
    return spec


def torchrl_to_gym_spec_transform(spec: TensorSpec, categorical_action_encoding: bool = False) -> Any:
    """The space of a spec.

    Args:
        spec: The spec.
        categorical_action_encoding: Accepted for symmetry: choices become Discrete in both encodings.

    Raises:
        SpecError: No space corresponds to this spec.

    Example:
        >>> torchrl_to_gym_spec_transform(OneHot(3))
        Discrete(3)
    """
    spaces = _spaces()
    if isinstance(spec, Composite):
        return spaces.Dict({name: torchrl_to_gym_spec_transform(leaf) for name, leaf in spec.items()})
    if isinstance(spec, Binary):
        return spaces.MultiBinary(spec.shape[0] if len(spec.shape) == 1 else tuple(spec.shape))
    if isinstance(spec, (OneHot, Categorical)):
        shape = spec.shape[:-1] if isinstance(spec, OneHot) else spec.shape
        return spaces.MultiDiscrete(np.full(tuple(shape), spec.n)) if shape else spaces.Discrete(spec.n)
    if isinstance(spec, (MultiOneHot, MultiCategorical)):
        counts = np.array(spec.to_categorical_spec()._nvec.tolist())
        return spaces.MultiDiscrete(counts)
    if isinstance(spec, Unbounded) and spec.dtype is not None and spec.dtype.is_floating_point:
        return spaces.Box(-np.inf, np.inf, tuple(spec.shape), dtype=spec.zero().numpy().dtype.type)
    if isinstance(spec, (Bounded, Unbounded)):
        low, high = (bound.numpy(force=True) for bound in spec.space)  # type: ignore[union-attr]
        return spaces.Box(low, high, tuple(low.shape), dtype=low.dtype)
    if isinstance(spec, NonTensor):
        return spaces.Text(max_length=2**16)
    if hasattr(spec, "stack_dim"):
        return spaces.Tuple([torchrl_to_gym_spec_transform(part) for part in spec.unbind(spec.stack_dim)])
    raise SpecError(f"no Gymnasium space is like {spec!r}")
