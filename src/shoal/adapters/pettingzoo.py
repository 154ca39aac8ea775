"""PettingZoo's parallel envs as Gymnasium envs: all players of an env in one row.

    PettingZoo   reset() -> {agent: obs}            step({agent: action}) -> {agent: obs}, {agent: reward}, ...
    here         one observation, a Dict            one action with a place for every player

        obs          what the players observe, stacked: each leaf has one place per player
        reward       float64, one per player
        terminated   1 for players who have just finished
        truncated    1 for players who were just cut short
        alive        1 for players who are in this row: all who play, and those who have just left, for the last time

The place of a player is that of its name in ``possible_agents``. The places of players who are not in the row hold
zeros (or whatever is closest to zero in their space), and their actions are ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from shoal.adapters.plain_number import plain_number
from shoal.adapters.see_through import SeeThrough
from shoal.errors import SpecError
from shoal.spec import EnvSpec, SpaceTree

if TYPE_CHECKING:
    from collections.abc import Mapping

_FLAG = np.dtype(np.int8)


class ParallelEnvAdapter(SeeThrough, gym.Env[Any, Any]):
    """A ``pettingzoo.ParallelEnv``, or an AEC env that can be made into one, with Gymnasium's interface.

    The reward is the sum of the players' rewards. The episode ends with the last player: it is terminated if one of
    those who were left until then has terminated, and truncated if one was truncated. The info holds the agents' infos
    by name. Other attributes are those of the env itself.

    Attributes:
        env: The parallel env.
        players: Names of all players, in the order of their places.
        player: What one player observes and does.

    Raises:
        SpecError: If the players' spaces differ, or the players cannot be known beforehand.
    """

    def __init__(self, env: Any) -> None:
        self.env = env = _as_parallel(env)
        agents = _agents_of(env)
        self.players = tuple(str(agent) for agent in agents)
        observation = _common_space(env.observation_space, agents, "observation")
        action = _common_space(env.action_space, agents, "action")
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self.player = EnvSpec(SpaceTree(observation, "observation"), SpaceTree(action, "action"), _name(env))
        for tree in (self.player.observation, self.player.action):
            if tree.has_objects:
                raise SpecError(f"{_name(env)}: players need spaces of arrays, got {tree.space}")
        count = len(agents)
        self.observation_space = spaces.Dict(
            {
                "obs": batch_space(observation, count),
                "reward": spaces.Box(-np.inf, np.inf, (count,), np.float64),
                "terminated": spaces.MultiBinary(count),
                "truncated": spaces.MultiBinary(count),
                "alive": spaces.MultiBinary(count),
            }
        )
        self.action_space = batch_space(action, count)
        self._places = {agent: place for place, agent in enumerate(agents)}
        self._blanks = [np.stack([leaf.blank()] * count) for leaf in self.player.observation.leaves]
        # Who plays, and who has left in this episode: nobody comes back.
        self._playing: list[Any] = []
        self._left: set[Any] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode with the players that the env begins with."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._left = set()
        self._playing = self._listed()
        if not self._playing:
            raise SpecError("reset: nobody plays, the env's agents are empty")
        row = self._blank_row()
        for agent in self._playing:
            self._put_observation(row["obs"], agent, observations)
            row["alive"][self._places[agent]] = 1
        return self._nested(row), _named(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step of everybody who plays."""
        observations, rewards, terminations, truncations, infos = self.env.step(self._actions(action))
        playing, listed = self._playing, self._listed()
        newcomers = [agent for agent in listed if agent not in playing]
        row = self._blank_row()
        remaining = []
        for agent in [*playing, *newcomers]:
            place = self._places[agent]
            row["terminated"][place] = terminated = bool(terminations.get(agent, False))
            row["truncated"][place] = truncated = bool(truncations.get(agent, False))
            if terminated or truncated:
                self._left.add(agent)
            elif agent in listed:
                remaining.append(agent)
            else:
                raise SpecError(f"step: player {agent!r} has left without being terminated or truncated")
            # Some envs say nothing more about players who leave.
            if agent in observations or agent not in self._left:
                self._put_observation(row["obs"], agent, observations)
            if agent in rewards or (agent in playing and agent not in self._left):
                row["reward"][place] = plain_number(_item(rewards, agent, "reward"), f"player {agent!r}: reward")
            row["alive"][place] = 1
        self._playing = remaining
        over = not remaining
        return (
            self._nested(row),
            float(row["reward"].sum()),
            over and bool(row["terminated"].any()),
            over and bool(row["truncated"].any()),
            _named(infos),
        )

    def render(self) -> Any:
        """What the env draws."""
        return self.env.render()

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    def _listed(self) -> list[Any]:
        """Those of the env's agents who have not left, in the order of their places."""
        agents = self.env.agents
        unknown = [agent for agent in agents if agent not in self._places]
        if unknown:
            raise SpecError(f"agents {unknown} are not among the possible agents {list(self._places)}")
        return sorted((agent for agent in agents if agent not in self._left), key=self._places.__getitem__)

    def _actions(self, action: Any) -> dict[Any, Any]:
        tree = self.player.action
        leaves = tree.flatten(action)
        # The env may go on listing players that it has dismissed, and then asks for their actions, too.
        return {agent: tree.unflatten([leaf[self._places[agent]] for leaf in leaves]) for agent in self.env.agents}

    def _blank_row(self) -> dict[str, Any]:
        count = len(self._places)
        flags = {name: np.zeros(count, _FLAG) for name in ("terminated", "truncated", "alive")}
        return {"obs": [blank.copy() for blank in self._blanks], "reward": np.zeros(count), **flags}

    def _put_observation(self, columns: list[Any], agent: Any, observations: Mapping[Any, Any]) -> None:
        tree, place = self.player.observation, self._places[agent]
        observation = _item(observations, agent, "observation")
        try:
            for column, leaf, value in zip(columns, tree.leaves, tree.flatten(observation), strict=True):
                column[place] = leaf.fit(value)
        except SpecError as error:
            raise SpecError(f"player {agent!r}: {error}") from None

    def _nested(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "obs": self.player.observation.unflatten(row["obs"])}


def _as_parallel(env: Any) -> Any:
    """The env itself, or the parallel env that PettingZoo makes of one whose agents act one after another."""
    if not hasattr(env, "agent_iter"):
        return env
    if not (getattr(env, "metadata", None) or {}).get("is_parallelizable", False):
        raise SpecError(
            f"{_name(env)} is an AEC env whose metadata does not say 'is_parallelizable': its agents take turns. "
            "pettingzoo.utils.conversions.turn_based_aec_to_parallel makes a parallel env of it, in which all but one "
            "action is ignored"
        )
    from pettingzoo.utils.conversions import aec_to_parallel

    return aec_to_parallel(env)


def _name(env: Any) -> str:
    """What the env calls itself: its class may be that of a wrapper."""
    return str((getattr(env, "metadata", None) or {}).get("name") or type(env).__name__)


def _agents_of(env: Any) -> list[Any]:
    agents = list(getattr(env, "possible_agents", None) or ())
    if not agents:
        raise SpecError(f"{_name(env)} has no possible_agents: all players must be known beforehand")
    if len({str(agent) for agent in agents}) != len(agents):
        raise SpecError(f"{_name(env)}: the possible agents {agents} do not have names of their own")
    return agents


def _common_space(space_of: Any, agents: list[Any], name: str) -> spaces.Space[Any]:
    first, *others = agents
    space: spaces.Space[Any] = space_of(first)
    for agent in others:
        if space_of(agent) != space:
            raise SpecError(
                f"all players must have the same {name} space, but {first!r} has {space} and {agent!r} has "
                f"{space_of(agent)}; pad them, for example with supersuit"
            )
    return space


def _item(values: Mapping[Any, Any], agent: Any, name: str) -> Any:
    try:
        return values[agent]
    except KeyError:
        raise SpecError(f"player {agent!r} plays but has no {name}; there are {list(values)}") from None


def _named(infos: Mapping[Any, Any]) -> dict[str, Any]:
    """The infos of the agents that have something to say, by name."""
    return {str(agent): info for agent, info in infos.items() if info}
