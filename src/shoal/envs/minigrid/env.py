"""One of minigrid's envs, with observations and infos as EnvPool has them."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.arguments import check_count
from shoal.envs.minigrid import register_with_gymnasium
from shoal.envs.minigrid.missions import FREE_TEXT, encode_mission, number_missions
from shoal.errors import ArgumentError, BackendUnavailable
from shoal.spec import Field

_NO_LIMIT = 2**31 - 1
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
# minigrid's keywords that an id settles, or for which there is another word here.
_NOT_OPTIONS = ("self", "mission_space", "max_steps")

Info = dict[str, Any]


class ArrayGrid(gym.Wrapper[Any, Any, Any, Any]):
    """An env of minigrid's whose observation is all arrays: ``direction``, ``image`` and, as bytes, ``mission``.

    Infos: ``agent_pos``, the cell the agent is in, and ``mission_id``, the number of the mission among those that the
    env may set, -1 if there is no list of them.

    Args:
        env: An env of minigrid's.
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
        """Turn, walk, or do something to what is ahead."""
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
    """Makes the envs of one id. Its signature lists the options that the env takes, which only minigrid can tell.

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
        """Make one.

        Args:
            mission_bytes: The most bytes that a mission may take; by default enough for every mission of the id.
            max_episode_steps: Steps after which an episode is cut short. The sooner before that the goal is reached,
                the higher is the reward. None leaves the number to minigrid, where it may depend on the mission.
            **options: Keyword arguments of minigrid's class.
        """
        size = self._mission_bytes if mission_bytes is None else mission_bytes
        check_count("mission_bytes", size)
        kind, settled = self._kind()
        if max_episode_steps is not None and max_episode_steps < _NO_LIMIT:
            settled["max_steps"] = max(1, int(max_episode_steps))
        return ArrayGrid(kind(**{**settled, **options}), int(size))

    @property
    def __signature__(self) -> inspect.Signature:
        kind, settled = self._kind()
        found: dict[str, Any] = {}
        # Each constructor hands what it does not know to the next one in line; the nearer one's default counts.
        for cls in reversed(kind.__mro__[: kind.__mro__.index(gym.Env)]):
            constructor = vars(cls).get("__init__")
            if constructor is not None:
                parameters = inspect.signature(constructor).parameters.values()
                found.update((p.name, p.default) for p in parameters if p.kind is not p.VAR_KEYWORD)
        found.update(settled, mission_bytes=self._mission_bytes, max_episode_steps=None)
        options = {name: default for name, default in found.items() if name not in _NOT_OPTIONS}
        return inspect.Signature([inspect.Parameter(n, _KEYWORD, default=d) for n, d in options.items()])

    @property
    def _mission_bytes(self) -> int:
        return 512 if self.task_id.startswith("BabyAI-") else 96

    def _kind(self) -> tuple[type[Any], dict[str, Any]]:
        """The class of minigrid's, and the keyword arguments that belong to the id."""
        register_with_gymnasium(self.task_id)
        registered = gym.registry.get(self.task_id)
        if registered is None:
            raise ArgumentError(f"{self.task_id}: the installed minigrid has no such env")
        module, _, name = str(registered.entry_point).partition(":")
        kind = getattr(importlib.import_module(module), name)
        if module == "minigrid.envs.wfc":
            _check_mazes(self.task_id, kind)
        return kind, dict(registered.kwargs)


def _check_mazes(task_id: str, kind: type[Any]) -> None:
    """Mazes that are made after a pattern need more libraries, and pictures that wheels of minigrid leave out."""
    if not issubclass(kind, gym.Env):  # stands in for it
        raise BackendUnavailable(f"{task_id} needs libraries of its own: pip install 'minigrid[wfc]'")
    patterns = Path(inspect.getfile(importlib.import_module("minigrid.envs.wfc"))).with_name("patterns")
    if not patterns.is_dir():
        raise BackendUnavailable(f"{task_id}: the installed minigrid lacks its patterns ({patterns}), as its wheels do")
