"""done, terminated and truncated, at every level where an env has them.

``done`` is the union of all ends of an episode. A level that declares ``done`` or ``terminated`` declares both; what
the env leaves out of its data is inferred:

    returned                    completed
    terminated                  done = terminated
    terminated, truncated       done = terminated | truncated
    done                        terminated = done: a lone flag is taken for a termination
    truncated                   done = truncated, terminated = False
    done, truncated             an error: nobody can tell whether the episode terminated too
    nothing                     all False
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env.keys import Path, key_of, leaf_keys, path_of

if TYPE_CHECKING:
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.specs import Composite, TensorSpec

FLAGS = ("done", "terminated", "truncated")


class Entries(Protocol):
    """What completion needs from a TensorDict: the dict inside has it, and `Checked` gives it to all other kinds."""

    def get(self, key: str) -> Any:
        """The value of an entry, None when there is none."""

    def __setitem__(self, key: str, value: Any) -> None: ...


class Checked:
    """The entries of a TensorDict through its own methods, for kinds whose insides cannot be written to."""

    __slots__ = ("_td",)

    def __init__(self, td: TensorDictBase) -> None:
        self._td = td

    def get(self, key: str) -> Any:
        """The value of an entry, None when there is none."""
        return self._td.get(key, None)

    def __setitem__(self, key: str, value: Any) -> None:
        self._td.set(key, value)


@dataclass(frozen=True, slots=True)
class DoneLevel:
    """The flags of one level.

    Attributes:
        path: Where the level is, empty for the root.
        flags: The names it declares, in order.
        shape: The shape they share, without the leading dims that a batch-unlocked env takes from its input.
        dtypes: The dtype of each flag.
        device: Where flags that are filled in have to be.
    """

    path: Path
    flags: tuple[str, ...]
    shape: torch.Size
    dtypes: tuple[torch.dtype, ...]
    device: torch.device | None

    @property
    def reset_key(self) -> str | tuple[str, ...]:
        """Where the mask of a partial reset of this level is."""
        return key_of((*self.path, "_reset"))

    @property
    def keys(self) -> list[str | tuple[str, ...]]:
        """The keys of its flags."""
        return [key_of((*self.path, flag)) for flag in self.flags]


def done_levels(spec: Composite) -> list[DoneLevel]:
    """The levels of a done spec, the root first, then by depth and name."""
    levels: dict[Path, dict[str, TensorSpec]] = {}
    for key in leaf_keys(spec):
        path = path_of(key)
        levels.setdefault(path[:-1], {})[path[-1]] = spec[key]
    return [_level(path, flags) for path, flags in sorted(levels.items(), key=lambda item: (len(item[0]), item[0]))]


class _UnequalFlags(TensorEnvError, ValueError):
    """A level whose flags differ in shape."""


def _level(path: Path, flags: dict[str, TensorSpec]) -> DoneLevel:
    shapes = {name: tuple(leaf.shape) for name, leaf in flags.items()}
    if len(set(shapes.values())) > 1:
        where = f"at {path}" if path else "at the root"
        raise _UnequalFlags(f"done_spec: the flags {where} have different shapes: {shapes}; give them one")
    first = next(iter(flags.values()))
    dtypes = tuple(leaf.dtype for leaf in flags.values())
    return DoneLevel(path, tuple(flags), torch.Size(first.shape), dtypes, first.device)


def complete_done_spec(spec: Composite, default: TensorSpec) -> None:
    """Give every level of a done spec that has ``done`` or ``terminated`` the other one too, in place.

    Args:
        spec: The done spec. When it names no flag at all, it gets both.
        default: The spec that both flags get if it names none.
    """
    if not list(spec.keys(True, True)):
        spec["done"], spec["terminated"] = default.clone(), default.clone()
        return
    for level in done_levels(spec):
        for flag, other in (("done", "terminated"), ("terminated", "done")):
            if flag in level.flags and other not in level.flags:
                spec[key_of((*level.path, other))] = spec[key_of((*level.path, flag))].clone()


def complete_flags(entries: Entries, level: DoneLevel, shape: torch.Size, env: object) -> None:
    """Infer the flags of a level that the env left out, and give all of them their shape.

    Args:
        entries: The entries of that level, changed in place.
        level: What is declared.
        shape: The shape the flags must have here.
        env: The env that returned the data, for the error.
    """
    missing = False
    for flag in level.flags:
        value = entries.get(flag)
        if value is None:
            missing = True
        elif value.shape != shape:
            entries[flag] = shaped(value, shape, env, (*level.path, flag))
    if missing:
        _infer(entries, level, shape, env)


def shaped(value: torch.Tensor, shape: torch.Size, env: object, path: Path) -> torch.Tensor:
    """A reward or a flag in the shape that its spec has; as it is where the spec leaves that open.

    Raises:
        TensorEnvError: If it has another number of elements.
    """
    if -1 in shape:
        return value
    if value.numel() != shape.numel():
        name = path[0] if len(path) == 1 else path
        raise TensorEnvError(
            f"{type(env).__name__}: {name!r} has shape {tuple(value.shape)}, and its spec has {tuple(shape)}"
        )
    return value.reshape(shape)


def _infer(entries: Entries, level: DoneLevel, shape: torch.Size, env: object) -> None:
    done, terminated, truncated = (entries.get(flag) for flag in FLAGS)
    if terminated is None and done is not None and truncated is not None and "terminated" in level.flags:
        raise TensorEnvError(
            f"{type(env).__name__}: returned done and truncated without terminated"
            f"{f' at {level.path}' if level.path else ''}: it cannot be told whether the episode terminated too; "
            "return terminated and truncated, done follows from them"
        )
    inferred: dict[str, torch.Tensor] = {}
    if done is None and terminated is not None:
        inferred["done"] = terminated.clone() if truncated is None else terminated | truncated.reshape(terminated.shape)
    elif done is None and truncated is not None:
        inferred["done"] = truncated.clone()
    elif done is not None and terminated is None:
        inferred["terminated"] = done.clone()
    shape = torch.Size(max(size, 1) if size < 0 else size for size in shape)
    for flag, dtype in zip(level.flags, level.dtypes, strict=True):
        if entries.get(flag) is None:
            value = inferred.get(flag)
            entries[flag] = torch.zeros(shape, dtype=dtype, device=level.device) if value is None else value
