"""The oracle of the laws: what each env must answer, worked out by hand, without a pool, an engine or a slot.

    Tape      one raw env driven by hand under the boundary rule: command in, `Answer` out
    Ledger    what a pool owes its caller: per env the commands that were sent and not received, in order

A law test does everything twice: once with the pool, once with a `Ledger`; whatever the pool hands out has to be what
the ledger has written down.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.batch import Batch


class Answer(NamedTuple):
    """One row, as its env gave it."""

    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    elapsed_step: int
    first: bool
    final: tuple[Any, dict[str, Any]] | None = None

    @property
    def is_over(self) -> bool:
        """Whether this row ends an episode."""
        return self.terminated or self.truncated


class Command(NamedTuple):
    """A step with an action, or a reset with a seed."""

    is_reset: bool
    action: Any = None
    seed: int | None = None


class Tape:
    """One env driven by hand. The rules of the three modes are written out here, not borrowed."""

    def __init__(self, env: Any, autoreset: str, limit: int | None = None) -> None:
        self.env = env
        self.autoreset = autoreset
        self.limit = limit
        self.length = 0
        self.is_over = False

    def play(self, command: Command) -> Answer:
        """What the env answers."""
        if command.is_reset or (self.is_over and self.autoreset == "next_step"):
            return self._begin(command.seed)
        obs, reward, terminated, truncated, info = self.env.step(command.action)
        self.length += 1
        truncated = truncated or self.length == self.limit
        self.is_over = terminated or truncated
        if not (self.is_over and self.autoreset == "same_step"):
            return Answer(_own(obs), float(reward), terminated, truncated, info, self.length, False)
        length, final = self.length, (_own(obs), info)
        fresh = self._begin(None)
        return Answer(fresh.obs, float(reward), terminated, truncated, fresh.info, length, True, final)

    def _begin(self, seed: int | None) -> Answer:
        obs, info = self.env.reset(seed=seed)
        self.length, self.is_over = 0, False
        return Answer(_own(obs), 0.0, False, False, info, 0, True)


@dataclass
class Account:
    """What is under way for one env: the answer that is being worked out, and the commands behind it."""

    tape: Tape
    next_answer: Answer | None = None
    queue: deque[Command] = field(default_factory=deque)
    was_reset: bool = False

    def add(self, command: Command) -> None:
        """A command was sent."""
        if self.next_answer is None:
            self.next_answer = self.tape.play(command)
        else:
            self.queue.append(command)

    def take(self) -> Answer:
        """The answer was received; the env turns to what waited behind it."""
        answer, self.next_answer = self.next_answer, None
        assert answer is not None, "a row that nobody asked for"
        if self.queue:
            self.next_answer = self.tape.play(self.queue.popleft())
        return answer

    def drop(self) -> None:
        """A reset makes void what is under way. The command that the env had already got was carried out."""
        self.next_answer = None
        self.queue.clear()

    @property
    def may_step(self) -> bool:
        """Whether another step makes sense: without autoreset an env must not be stepped past its episode's end."""
        if not self.was_reset:
            return False
        return self.tape.autoreset != "disabled" or not (self.tape.is_over or self.queue)


class Ledger:
    """All envs of a pool, and the order in which a synchronous pool must answer."""

    def __init__(self, envs: Sequence[Any], autoreset: str, limit: int | None = None) -> None:
        self.accounts = [Account(Tape(env, autoreset, limit)) for env in envs]
        self.groups: deque[list[int]] = deque()

    @property
    def busy(self) -> list[int]:
        """Envs that owe an answer."""
        return [i for i, account in enumerate(self.accounts) if account.next_answer is not None]

    def steppable(self, ids: Sequence[int]) -> list[int]:
        """Those of ``ids`` that may be sent another step."""
        return [i for i in ids if self.accounts[i].may_step]

    def send(self, ids: Sequence[int], actions: Sequence[Any]) -> None:
        """A step was sent to each of ``ids``."""
        for i, action in zip(ids, actions, strict=True):
            self.accounts[i].add(Command(False, action))
        self.groups.append(list(ids))

    def reset(self, ids: Sequence[int], seeds: Sequence[int | None]) -> None:
        """A reset was sent to each of ``ids``."""
        for i, seed in zip(ids, seeds, strict=True):
            account = self.accounts[i]
            account.drop()
            account.was_reset = True
            account.add(Command(True, seed=seed))
        void = set(ids)
        self.groups = deque(rest for group in self.groups if (rest := [i for i in group if i not in void]))
        self.groups.append(list(ids))

    def receive(self, batch: Batch) -> None:
        """Check every row of a batch against what its env owes, and strike it off."""
        infos = dict(batch.infos)
        assert len(infos) == len(batch.infos), "two infos for one row"
        assert len(set(batch.env_id.tolist())) == len(batch), "an env has two rows in one batch"
        for row, env_id in enumerate(batch.env_id.tolist()):
            expected = self.accounts[env_id].take()
            assert_same(read_answer(batch, row, infos), expected, f"env {env_id}")

    def receive_group(self, batch: Batch, least: int) -> None:
        """``receive`` for a synchronous pool: rows belong to the oldest send and come in the order of its ids."""
        group = self.groups.popleft()
        ids = batch.env_id.tolist()
        assert ids == [i for i in group if i in ids]
        assert least <= len(ids)
        rest = [i for i in group if i not in ids]
        if rest:
            self.groups.appendleft(rest)
        self.receive(batch)


def read_answer(batch: Batch, row: int, infos: dict[int, dict[str, Any]] | None = None) -> Answer:
    """One row of a batch as an `Answer`."""
    infos = dict(batch.infos) if infos is None else infos
    return Answer(
        obs=_map_leaves(batch.obs, lambda leaf: leaf[row]),
        reward=float(batch.reward[row]),
        terminated=bool(batch.terminated[row]),
        truncated=bool(batch.truncated[row]),
        info=infos.get(row, {}),
        elapsed_step=int(batch.elapsed_step[row]),
        first=bool(batch.first[row]),
        final=batch.finals.get(row),
    )


def assert_same(got: Any, expected: Any, path: str) -> None:
    """Equal values of equal types, all the way down; arrays also have equal dtypes and shapes."""
    assert type(got) is type(expected), f"{path}: {got!r} is no {type(expected).__name__}"
    if isinstance(expected, dict):
        assert list(got) == list(expected), f"{path}: other keys or another order"
        for key in expected:
            assert_same(got[key], expected[key], f"{path}[{key!r}]")
    elif isinstance(expected, tuple | list):
        assert len(got) == len(expected), path
        names = getattr(expected, "_fields", range(len(expected)))
        for name, one, other in zip(names, got, expected, strict=True):
            assert_same(one, other, f"{path}.{name}")
    elif isinstance(expected, np.ndarray | np.generic):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), path
        np.testing.assert_array_equal(got, expected, err_msg=path)
    else:
        assert got == expected or (got != got and expected != expected), f"{path}: {got!r}, expected {expected!r}"


def stack_actions(actions: Sequence[Any]) -> Any:
    """Single actions as the batch that a pool takes: nested like an action, with one array per leaf."""
    first = actions[0]
    if isinstance(first, dict):
        return {key: stack_actions([action[key] for action in actions]) for key in first}
    if isinstance(first, tuple):
        return tuple(stack_actions(parts) for parts in zip(*actions, strict=True))
    return list(actions) if isinstance(first, str) else np.stack(actions)


def _map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_map_leaves(item, change) for item in value)
    return change(value)


def _own(obs: Any) -> Any:
    """The observation as it is now, in case the env writes the next one into the same memory.

    A leaf without axes comes back as a numpy scalar, since a row of a column can be nothing else.
    """
    if type(obs) not in (dict, tuple, np.ndarray):
        return obs
    return _map_leaves(obs, lambda leaf: np.copy(leaf)[()] if type(leaf) is np.ndarray else leaf)
