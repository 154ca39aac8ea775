"""Envs with nested, variable-size and user-defined observation spaces.

`SampleEnv` observes random samples of any space you give it, reproducibly: the samples follow from the seed. The others
are `SampleEnv`s of one space each, chosen to cover what a pool must carry besides plain arrays.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

if TYPE_CHECKING:
    from collections.abc import Sequence

Inventory: TypeAlias = dict[str, Any]


class SampleEnv(gymnasium.Env[Any, Any]):
    """An env that observes samples of a given space.

    The reward is the step number in the episode, infos are `{"t": step}`, and episodes are alternately terminated and
    truncated.

    Args:
        observation_space: What to observe. The env samples from a copy of it.
        action_space: Actions are ignored. The default is `Discrete(5)`.
        episode_length: Steps in every episode.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any] | None = None,
        episode_length: int = 5,
    ) -> None:
        if episode_length < 1:
            raise ValueError(f"episode_length must be at least 1, got {episode_length}")
        self.observation_space = observation_space
        self.action_space = spaces.Discrete(5) if action_space is None else action_space
        self.episode_length = episode_length
        # A copy, since callers may sample or seed the public space and must not change what the env observes.
        self._source = copy.deepcopy(observation_space)
        self._episode = -1
        self._step = episode_length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the next episode or, with a seed, the first one again."""
        super().reset(seed=seed)
        self._episode = 0 if seed is not None else self._episode + 1
        self._step = 0
        self._source.seed(int(self.np_random.integers(2**31)))
        return self._observe(None), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Observe the next sample.

        Raises:
            ResetNeeded: There is no episode under way.
        """
        if self._step >= self.episode_length:
            raise ResetNeeded(f"{type(self).__name__}: no episode is under way, call reset first")
        self._step += 1
        has_ended = self._step >= self.episode_length
        is_even = self._episode % 2 == 0
        return self._observe(action), float(self._step), has_ended and is_even, has_ended and not is_even, self._info()

    def _observe(self, action: Any) -> Any:
        return self._source.sample()

    def _info(self) -> dict[str, Any]:
        return {"t": self._step}


class DictTupleEnv(SampleEnv):
    """An env with a nested observation and a nested action, and with infos of many kinds.

    The observation's "echo" is the last action, and a random one after a reset. Infos hold scalars of several types,
    arrays, strings and nested dicts; "rare" and "nested/rare" are there only now and then.

    Args:
        episode_length: Steps in every episode.
    """

    def __init__(self, episode_length: int = 5) -> None:
        action_space = spaces.Dict(
            {
                "gear": spaces.Discrete(3, start=-1),
                "force": spaces.Box(-1, 1, (2,), np.float32),
                "mix": spaces.Tuple((spaces.MultiBinary(2), spaces.Discrete(4))),
            }
        )
        observation_space = spaces.Dict(
            {
                "camera": spaces.Box(-1, 1, (2, 3), np.float32),
                "gear": spaces.Discrete(4, start=3),
                "buttons": spaces.MultiBinary(5),
                "knobs": spaces.MultiDiscrete([3, 4]),
                "inner": spaces.Dict({"pixels": spaces.Box(0, 255, (4,), np.uint8), "mode": spaces.Discrete(2)}),
                "pair": spaces.Tuple((spaces.Box(-np.inf, np.inf, (), np.float64), spaces.Discrete(3))),
                "echo": copy.deepcopy(action_space),
            }
        )
        super().__init__(observation_space, action_space, episode_length)

    def _observe(self, action: Any) -> Any:
        obs = super()._observe(action)
        if action is not None:
            obs["echo"] = copy.deepcopy(action)
        return obs

    def _info(self) -> dict[str, Any]:
        rng = self.np_random
        nested: dict[str, Any] = {"depth": {"t": self._step}, "vector": rng.random(2)}
        info: dict[str, Any] = {
            "t": self._step,
            "ratio": float(rng.random()),
            "float32": np.float32(rng.random()),
            "int64": rng.integers(100),
            "flag": self._step % 2 == 0,
            "numpy_flag": np.bool_(self._step % 2),
            "label": f"step {self._step}",
            "vector": rng.random(3),
            "nested": nested,
        }
        if rng.random() < 0.3:
            info["rare"] = self._step
        if rng.random() < 0.3:
            nested["rare"] = "seldom"
        return info


class TextEnv(SampleEnv):
    """An env that observes strings of 0 to 16 letters, some of them not ASCII.

    Args:
        episode_length: Steps in every episode.
    """

    def __init__(self, episode_length: int = 5) -> None:
        super().__init__(spaces.Text(16, min_length=0, charset="abcXYZ 019éß漢"), episode_length=episode_length)


class SequenceEnv(SampleEnv):
    """An env that observes a varying number of vectors, now and then none.

    Args:
        stack: Whether an observation is one stacked array instead of a tuple of arrays.
        episode_length: Steps in every episode.
    """

    def __init__(self, stack: bool = False, episode_length: int = 5) -> None:
        vector = spaces.Box(-1, 1, (2,), np.float32)
        super().__init__(spaces.Sequence(vector, stack=stack), episode_length=episode_length)


class GraphEnv(SampleEnv):
    """An env that observes graphs of varying size: vectors on the nodes, numbers on the edges.

    Args:
        episode_length: Steps in every episode.
    """

    def __init__(self, episode_length: int = 5) -> None:
        graph = spaces.Graph(node_space=spaces.Box(-1, 1, (3,), np.float32), edge_space=spaces.Discrete(4))
        super().__init__(graph, episode_length=episode_length)

    def _observe(self, action: Any) -> Any:
        # A graph space draws the number of edges itself, but always takes ten nodes unless told.
        return cast("spaces.Graph", self._source).sample(num_nodes=int(self.np_random.integers(1, 9)))


class InventorySpace(spaces.Space[Inventory]):
    """A space gymnasium does not know, with plain-data values: `{"items": ["rope", ...], "place": (x, y)}`.

    Args:
        names: What items there are.
        size: Both coordinates of the place are below this.
        seed: Seed of the space's generator.
    """

    def __init__(self, names: Sequence[str] = ("rope", "lamp", "map"), size: int = 10, seed: int | None = None) -> None:
        super().__init__(None, None, seed)
        self.names = tuple(names)
        self.size = size

    @property
    def is_np_flattenable(self) -> bool:
        """Values do not flatten into an array."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> Inventory:
        """A random inventory; masks are not supported, and are ignored."""
        rng = self.np_random
        items = [self.names[int(n)] for n in rng.integers(len(self.names), size=int(rng.integers(4)))]
        return {"items": items, "place": (int(rng.integers(self.size)), int(rng.integers(self.size)))}

    def contains(self, x: Any) -> bool:
        """Whether `x` is an inventory of this space."""
        if not (isinstance(x, dict) and x.keys() == {"items", "place"}):
            return False
        items, place = x["items"], x["place"]
        has_items = isinstance(items, list) and all(item in self.names for item in items)
        has_place = isinstance(place, tuple) and len(place) == 2
        return has_items and has_place and all(isinstance(n, int) and 0 <= n < self.size for n in place)

    def __eq__(self, other: object) -> bool:
        """Whether `other` is a space of the same inventories."""
        return isinstance(other, InventorySpace) and (self.names, self.size) == (other.names, other.size)

    def __hash__(self) -> int:
        """Equal spaces hash alike."""
        return hash((self.names, self.size))

    def __repr__(self) -> str:
        """The call that makes this space."""
        return f"InventorySpace({self.names!r}, {self.size!r})"


class CustomSpaceEnv(SampleEnv):
    """An env that observes values of a user-defined space, `InventorySpace`.

    Args:
        episode_length: Steps in every episode.
    """

    def __init__(self, episode_length: int = 5) -> None:
        super().__init__(InventorySpace(), episode_length=episode_length)
