"""One of minigrid's envs, with observations and infos as EnvPool has them."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.arguments import check_count
from shoal.envs.minigrid import register_with_gymnasium
from shoal.envs.minigrid.missions import FREE_TEXT, encode_mission, number_missions
from shoal.errors import ArgumentError, BackendUnavailable, WrongType
from shoal.spec import Field

_NO_LIMIT = 2**31 - 1
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
# minigrid's keywords that an id determines, or that have another name here.
_NOT_OPTIONS = ("self", "mission_space", "max_steps")

Info = dict[str, Any]


class ArrayGrid(gym.Wrapper[Any, Any, Any, Any]):
    """A minigrid env whose observation is all arrays: ``direction``, ``image`` and, as bytes, ``mission``.

    Infos: ``agent_pos``, the cell the agent is in, and ``mission_id``, the number of the mission among those that the
    env may set, or -1 if there is no list of them.

    Args:
        env: A minigrid env.
        mission_bytes: The most bytes that a mission may take.
    """

    info_columns = (Field("agent_pos", np.dtype(np.int32), (2,)), Field("mission_id", np.dtype(np.int32), ()))

    def __init__(self, env: Any, mission_bytes: int) -> None:
        from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX

        super().__init__(env)
        self._grid = env
        seen = env.observation_space
        text = spaces.Box(0, 255, (mission_bytes,), np.uint8)
        self.observation_space = spaces.Dict({**seen.spaces, "mission": text})
        self._numbers = number_missions(seen["mission"], {**COLOR_TO_IDX, **OBJECT_TO_IDX})
        self._bytes = mission_bytes
        self._mission: str | None = None
        self._encoded: Any = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        """Begin an episode, in a new grid."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._observed(obs), self._told(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Info]:
        """Turn, walk, or act on what is ahead."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._observed(obs), reward, terminated, truncated, self._told(info)

    def _observed(self, obs: Any) -> Any:
        if obs["mission"] != self._mission:
            try:
                self._encoded = encode_mission(obs["mission"], self._bytes)
            except ValueError as error:
                raise ArgumentError(f"mission_bytes: {error}") from error
            self._mission = obs["mission"]
        return {**obs, "mission": self._encoded}

    def _told(self, info: Info) -> Info:
        number = self._numbers.get(str(self._mission), FREE_TEXT)
        return {**info, "agent_pos": np.asarray(self._grid.agent_pos, np.int32), "mission_id": number}


@dataclass(frozen=True)
class GridMaker:
    """Makes the envs of one id. Its signature lists the options of the env, which only minigrid knows.

    Attributes:
        task_id: One of minigrid's ids.

    Example:
        >>> env = GridMaker("MiniGrid-Empty-5x5-v0")(agent_view_size=5)
        >>> env.reset(seed=1)[0]["image"].shape
        (5, 5, 3)
    """

    reset_options: ClassVar[tuple[str, ...]] = ()
    task_id: str

    def __call__(
        self, *, mission_bytes: int | None = None, max_episode_steps: int | None = None, **options: Any
    ) -> ArrayGrid:
        """Make an env.

        Args:
            mission_bytes: The most bytes that a mission may take; by default enough for every mission of the id.
            max_episode_steps: Steps after which an episode is cut short. The earlier before that the goal is reached,
                the higher the reward. None leaves the number to minigrid, where it may depend on the mission.
            **options: Keyword arguments of minigrid's class.
        """
        size = self._mission_bytes if mission_bytes is None else mission_bytes
        check_count("mission_bytes", size)
        kind, settled = self._kind()
        for name in options.keys() & _keywords_of(kind)[1]:
            raise WrongType(f"{self.task_id}: {name} is settled by the id")
        if max_episode_steps is not None and max_episode_steps < _NO_LIMIT:
            settled["max_steps"] = max(1, int(max_episode_steps))
        return ArrayGrid(kind(**{**settled, **options}), int(size))

    @property
    def __signature__(self) -> inspect.Signature:
        kind, settled = self._kind()
        known, _ = _keywords_of(kind)
        found = {**known, **settled, "mission_bytes": self._mission_bytes, "max_episode_steps": None}
        options = {name: default for name, default in found.items() if name not in _NOT_OPTIONS}
        return inspect.Signature([inspect.Parameter(n, _KEYWORD, default=d) for n, d in options.items()])

    @property
    def _mission_bytes(self) -> int:
        return 512 if self.task_id.startswith("BabyAI-") else 96

    def _kind(self) -> tuple[Any, dict[str, Any]]:
        """The class in minigrid, and the keyword arguments that belong to the id."""
        register_with_gymnasium(self.task_id)
        registered = gym.registry.get(self.task_id)
        if registered is None:
            raise ArgumentError(f"{self.task_id}: the installed minigrid has no such env")
        module, _, name = str(registered.entry_point).partition(":")
        kind = getattr(importlib.import_module(module), name)
        if module == "minigrid.envs.wfc":
            _check_mazes(self.task_id, kind)
        return kind, dict(registered.kwargs)


@cache
def _keywords_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """The keywords that a class takes, with their defaults, and those of its bases that it settles itself."""
    found: dict[str, Any] = {}
    settled: set[str] = set()
    # Each constructor passes unknown keywords on to the next class in the MRO; the nearest class's default counts.
    for cls in reversed(kind.__mro__[: kind.__mro__.index(gym.Env)]):
        constructor = vars(cls).get("__init__")
        if constructor is not None:
            settled |= _passed_on(constructor)
            parameters = inspect.signature(constructor).parameters.values()
            own = {p.name: p.default for p in parameters if p.kind is not p.VAR_KEYWORD}
            settled -= own.keys()
            found.update(own)
    return {name: default for name, default in found.items() if name not in settled}, frozenset(settled)


def _passed_on(constructor: Any) -> set[str]:
    """The keywords that a constructor gives to that of its base next to ``**kwargs``: nobody else may give them."""
    calls = [node for node in ast.walk(ast.parse(dedent(inspect.getsource(constructor)))) if isinstance(node, ast.Call)]
    return {
        word.arg
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__"
        if any(word.arg is None for word in call.keywords)
        for word in call.keywords
        if word.arg is not None
    }


def _check_mazes(task_id: str, kind: type[Any]) -> None:
    """Check what mazes made from a pattern need: more libraries, and pictures that minigrid's wheels leave out."""
    if not issubclass(kind, gym.Env):  # a stand-in for the env
        raise BackendUnavailable(f"{task_id} needs libraries of its own: pip install 'minigrid[wfc]'")
    patterns = Path(inspect.getfile(importlib.import_module("minigrid.envs.wfc"))).with_name("patterns")
    if not patterns.is_dir():
        raise BackendUnavailable(f"{task_id}: the installed minigrid lacks its patterns ({patterns}), as its wheels do")
