"""check_env_specs: a short rollout against what the specs declare, with errors that name the key."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, is_non_tensor

from shoal.faces.torchrl.env.keys import Path, is_nested, key_of, path_of
from shoal.faces.torchrl.fast_td import entries_of
from shoal.faces.torchrl.specs import NonTensor, StackedComposite
from shoal.faces.torchrl.specs.shapes import fits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.faces.torchrl.env_base import EnvBase

STEPS = 3


def check_env_specs(
    env: EnvBase,
    return_contiguous: bool | None = None,
    check_dtype: bool = True,
    seed: int | None = None,
    tensordict: TensorDictBase | None = None,
    break_when_any_done: bool | Literal["both"] | None = None,
) -> None:
    """Take a few random steps and check the data against the specs.

    Args:
        env: The env.
        return_contiguous: Whether the rollout has to be one dense TensorDict.
        check_dtype: Whether dtypes have to match, too.
        seed: Seeds the env, and torch for the duration of the check.
        tensordict: Passed to the reset, for envs that need something in it.
        break_when_any_done: Passed to the rollout; ``"both"`` runs one rollout of each kind.

    Raises:
        AssertionError: Keys, shapes, dtypes or values are not as declared. The message lists each key with what was
            expected and what was found. If the steps cannot be stacked, it is a RuntimeError too.

    Example:
        >>> from shoal.faces.torchrl import GymEnv
        >>> check_env_specs(GymEnv("CartPole-v1"))
    """
    ways = (True, False) if break_when_any_done == "both" else (break_when_any_done,)
    with nullcontext() if seed is None else torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
            env.set_seed(seed)
        for way in ways:
            data = env.rollout(STEPS, tensordict=tensordict, break_when_any_done=way)
            faults = list(dict.fromkeys(_faults(env, data, check_dtype)))
            if faults:
                listed = "\n  ".join(faults)
                kind = _Ragged if _is_ragged(data) else AssertionError
                raise kind(f"{type(env).__name__} does not keep to its specs:\n  {listed}")
            if return_contiguous:
                _check_dense(env, data)


class _Ragged(AssertionError, RuntimeError):
    """The steps of a rollout cannot be stacked."""


def _is_ragged(data: TensorDictBase) -> bool:
    """Whether the steps of a rollout differ in keys or shapes."""
    return isinstance(data, LazyStackedTensorDict) and data.stack_dim == data.ndim - 1


def _check_dense(env: EnvBase, data: TensorDictBase) -> None:
    try:
        data.contiguous()
    except RuntimeError as error:
        raise _Ragged(f"{type(env).__name__}: the rollout is not one dense TensorDict: {error}") from error


def _faults(env: EnvBase, data: TensorDictBase, check_dtype: bool) -> Iterator[str]:
    steps = data.unbind(-1)
    fake = env.fake_tensordict()
    if fake.ndim < steps[0].ndim:
        fake = fake.expand(steps[0].batch_size)
    states = {("next", *path_of(key)) for key in env.state_keys}
    for step in steps:
        differences = list(_differences(fake, step, (), states, check_dtype))
        yield from differences
        if not differences:
            yield from _strays(env, step, check_dtype)


def _differences(fake: Any, real: Any, path: Path, extra: set[Path], check_dtype: bool) -> Iterator[str]:
    """Keys, kinds and dtypes that differ from those of the example."""
    lazy = next((td for td in (fake, real) if isinstance(td, LazyStackedTensorDict)), None)
    if lazy is not None:
        for at, parts in enumerate(zip(fake.unbind(lazy.stack_dim), real.unbind(lazy.stack_dim), strict=True)):
            for fault in _differences(*parts, path, extra, check_dtype):
                yield f"{fault} (part {at})"
        return
    expected, found = _entries(fake), _entries(real)
    for name in expected.keys() - found.keys():
        yield f"{_key(path, name)}: declared, but missing in the data"
    for name in found.keys() - expected.keys():
        if (*path, name) not in extra:
            yield f"{_key(path, name)}: in the data, but in no spec"
    for name in expected.keys() & found.keys():
        want, got = expected[name], found[name]
        if is_nested(want) and is_nested(got):
            yield from _differences(want, got, (*path, name), extra, check_dtype)
        elif isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
            if check_dtype and got.dtype != want.dtype:
                yield f"{_key(path, name)}: expected dtype {want.dtype}, got {got.dtype}"
        elif is_non_tensor(want) != is_non_tensor(got):
            yield f"{_key(path, name)}: expected {type(want).__name__}, got {type(got).__name__}"


def _strays(env: EnvBase, step: TensorDictBase, check_dtype: bool) -> Iterator[str]:
    """Shapes and values that lie outside their specs."""
    root = (_unmasked(env.full_action_spec), env.full_state_spec, env.full_done_spec, env.full_observation_spec)
    for spec in root:
        yield from _outside(spec, step, (), check_dtype)
    for spec in (env.full_reward_spec, env.full_done_spec, env.full_observation_spec):
        yield from _outside(spec, step.get("next"), ("next",), check_dtype)


def _unmasked(spec: Any) -> Any:
    """A spec without masks: action masks apply to the step to come, not to the one that was taken."""
    unmasked = spec.clone()
    for leaf in list(_masked_leaves(unmasked)):
        leaf.update_mask(None)
    return unmasked


def _masked_leaves(spec: Any) -> Iterator[Any]:
    if hasattr(spec, "stack_dim"):
        for part in spec.unbind(spec.stack_dim):
            yield from _masked_leaves(part)
    elif hasattr(spec, "keys"):
        for part in spec.values():
            yield from _masked_leaves(part)
    elif getattr(spec, "mask", None) is not None:
        yield spec


def _outside(spec: Any, td: Any, path: Path, check_dtype: bool) -> Iterator[str]:
    if isinstance(spec, StackedComposite) or isinstance(td, LazyStackedTensorDict):
        extra = td.ndim - spec.ndim
        dim = spec.stack_dim + extra if isinstance(spec, StackedComposite) else td.stack_dim
        # A lazy stack along a dim that the spec does not have is a batch of values of the spec.
        members = spec.unbind(dim - extra) if dim >= extra else [spec] * td.shape[dim]
        for at, (member, part) in enumerate(zip(members, td.unbind(dim), strict=True)):
            for fault in _outside(member, part, path, check_dtype):
                yield f"{fault} (part {at})"
        return
    for name, leaf in spec.items():
        value = td.get(name)
        if leaf is None:
            continue
        if hasattr(leaf, "keys"):
            yield from _outside(leaf, value, (*path, name), check_dtype)
            continue
        if not check_dtype and isinstance(value, torch.Tensor):
            value = value.to(leaf.dtype)
        wrong_shape = isinstance(value, torch.Tensor) and not _same_shape(value, leaf)
        if wrong_shape:
            yield f"{_key(path, name)}: expected shape {tuple(leaf.shape)}, got {tuple(value.shape)}"
        elif not leaf.is_in(value):
            yield f"{_key(path, name)}: {leaf.why_not(value)}: {_short(value)}"


def _same_shape(value: torch.Tensor, leaf: Any) -> bool:
    """Whether the shape is the declared one, with leading dims only where the env takes any batch."""
    if isinstance(leaf, NonTensor):
        return True
    tail = value.shape[value.ndim - len(leaf.shape) :]
    return fits(value.shape, leaf.shape) and all(mine in (-1, dim) for mine, dim in zip(leaf.shape, tail, strict=True))


def _entries(td: Any) -> Any:
    inside = entries_of(td)
    return dict(td.items()) if inside is None else inside


def _key(path: Path, name: str) -> str:
    return repr(key_of((*path, name)))


def _short(value: Any) -> str:
    text = str(value).replace("\n", "")
    return text if len(text) < 200 else f"{text[:200]} ..."
