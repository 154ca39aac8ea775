"""The agents of one group: their specs stacked, their rows stacked, and their actions taken apart again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from tensordict import LazyStackedTensorDict, TensorDictBase

from shoal.errors import MissingAction, SpecError
from shoal.faces.torchrl.codecs import codec_for
from shoal.faces.torchrl.fast_td import build, stack
from shoal.faces.torchrl.spaces import gym_to_torchrl_spec_transform
from shoal.faces.torchrl.specs import Categorical, Composite, Unbounded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.faces.torchrl.specs import TensorSpec

_NONE = torch.Size()


class Agent:
    """One agent: what it observes and does.

    Args:
        name: Its name.
        observation_space: What it observes. The entry ``action_mask`` of a dict says which actions are allowed, and
            becomes a separate entry.
        action_space: What it does.
        categorical_actions: Whether discrete actions are integers.
        info: One of its infos, to learn which entries they have.
        device: Where results are put.
    """

    def __init__(
        self,
        name: str,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        categorical_actions: bool,
        info: Mapping[str, Any],
        device: Any,
    ) -> None:
        self.name = name
        mask_space = None
        if isinstance(observation_space, spaces.Dict) and "action_mask" in observation_space.spaces:
            mask_space = observation_space["action_mask"]
            rest = {key: space for key, space in observation_space.spaces.items() if key != "action_mask"}
            observation_space = spaces.Dict(rest)
        self.mask_in_observation = mask_space is not None
        self.has_action_mask = self.mask_in_observation or "action_mask" in info
        self.mask_shape = np.shape(info["action_mask"]) if mask_space is None and self.has_action_mask else ()
        self.mask_shape = tuple(mask_space.shape or ()) if mask_space is not None else self.mask_shape
        self.observation_spec = gym_to_torchrl_spec_transform(observation_space, device=device)
        self.action_spec = gym_to_torchrl_spec_transform(
            action_space, device=device, categorical_action_encoding=categorical_actions
        )
        self._observation = codec_for(observation_space, self.observation_spec, f"{name}: observation")
        self.action = codec_for(action_space, self.action_spec, f"{name}: action")
        self.info = {key: read for key, value in info.items() if (read := _number(value)) is not None}

    def read(self, observation: Any) -> Any:
        """Its observation as an entry; zeros if there is none."""
        if observation is None:
            return self.observation_spec.zero()
        return self._observation.read(observation)

    def action_mask(self, observation: Any, info: Mapping[str, Any], is_acting: bool) -> torch.Tensor:
        """Which actions it may take; all, if it is not its turn."""
        found = None
        if is_acting:
            found = observation["action_mask"] if self.mask_in_observation else info.get("action_mask")
        if found is None:
            return torch.ones(self.mask_shape, dtype=torch.bool)
        return torch.from_numpy(np.array(found, np.bool_))


class AgentGroup:
    """Agents that share a TensorDict.

    Attributes:
        name: The name of the group.
        agents: Its agents.
        has_action_masks: Whether they are told which actions are allowed.
    """

    def __init__(self, name: str, agents: Sequence[Agent], use_mask: bool, device: Any) -> None:
        self.name = name
        self.agents = list(agents)
        self.has_action_masks = all(agent.has_action_mask for agent in agents)
        shared = set.intersection(*(set(agent.info) for agent in agents)) - {"action_mask"}
        self._info_keys = [key for key in agents[0].info if key in shared]
        self._use_mask = use_mask
        self._device = device
        self._is_alike = all(agent.action_spec == agents[0].action_spec for agent in agents)

    # ------------------------------------------------------------------ specs

    def observation_spec(self) -> Composite:
        """What its agents observe."""
        return self._stacked(self._observed_by)

    def _observed_by(self, agent: Agent) -> dict[str, TensorSpec]:
        specs: dict[str, TensorSpec] = {"observation": agent.observation_spec}
        if self.has_action_masks:
            specs["action_mask"] = self._flag(agent.mask_shape)
        if self._use_mask:
            specs["mask"] = self._flag(())
        if self._info_keys:
            infos = {key: agent.info[key] for key in self._info_keys}
            specs["info"] = Composite(
                {
                    key: Unbounded(shape=value.shape, dtype=value.dtype, device=self._device)
                    for key, value in infos.items()
                },
                device=self._device,
            )
        return specs

    def action_spec(self) -> Composite:
        """What its agents do."""
        return self._stacked(lambda agent: {"action": agent.action_spec})

    def reward_spec(self) -> Composite:
        """What its agents are rewarded with."""
        return self._stacked(lambda agent: {"reward": Unbounded(shape=(1,), device=self._device)})

    def done_spec(self) -> Composite:
        """The flags that say how its agents ended."""
        return self._stacked(lambda agent: {name: self._flag((1,)) for name in ("done", "terminated", "truncated")})

    def _flag(self, shape: tuple[int, ...]) -> TensorSpec:
        return Categorical(2, shape=shape, dtype=torch.bool, device=self._device)

    def _stacked(self, specs_of: Callable[[Agent], dict[str, TensorSpec]]) -> Composite:
        stacked: Composite = torch.stack([Composite(specs_of(agent), device=self._device) for agent in self.agents], 0)
        return stacked

    # ------------------------------------------------------------------ rows

    def rows(
        self,
        observations: Mapping[str, Any],
        infos: Mapping[str, Any],
        acting: Mapping[str, bool],
        extra: Mapping[str, Mapping[str, torch.Tensor]],
    ) -> TensorDictBase:
        """One row per agent.

        Args:
            observations: What agents observe; an agent that is missing here observes zeros.
            infos: The infos of agents.
            acting: Whether it is each agent's turn.
            extra: Further entries of each agent, such as its reward and flags.
        """
        made = [self._row(agent, observations, infos, acting, extra.get(agent.name, {})) for agent in self.agents]
        dense = stack(made, 0)
        return LazyStackedTensorDict(*made, stack_dim=0) if dense is None else dense

    def _row(self, agent: Agent, observations: Any, infos: Any, acting: Any, extra: Mapping[str, Any]) -> Any:
        observed, info = observations.get(agent.name), infos.get(agent.name) or {}
        row: dict[str, Any] = {"observation": agent.read(observed)}
        if self.has_action_masks:
            row["action_mask"] = agent.action_mask(observed, info, acting[agent.name] and observed is not None)
        if self._use_mask:
            row["mask"] = torch.tensor(acting[agent.name])
        if self._info_keys:
            row["info"] = build({key: _info(agent, key, info) for key in self._info_keys}, _NONE)
        return build({**row, **extra}, _NONE)

    # ------------------------------------------------------------------ actions

    def actions(self, group: TensorDictBase, wanted: Callable[[str], bool]) -> dict[str, Any]:
        """The actions of those agents that are wanted."""
        if not any(wanted(agent.name) for agent in self.agents):
            return {}
        if "action" not in group.keys():  # noqa: SIM118  a TensorDict is no dict
            raise MissingAction(f"step: ({self.name!r}, 'action') is missing; there are {list(group.keys())}")
        if self._is_alike:
            parts: Any = group.get("action").unbind(0)
        else:
            parts = [row.get("action") for row in group.unbind(0)]
        return {
            agent.name: agent.action.write(part)
            for agent, part in zip(self.agents, parts, strict=True)
            if wanted(agent.name)
        }


def _number(value: Any) -> torch.Tensor | None:
    """A number, or an array of numbers, as a tensor of float32; None for anything else."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        return None
    return torch.from_numpy(np.array(array, np.float32))


def _info(agent: Agent, key: str, info: Mapping[str, Any]) -> torch.Tensor:
    blank = agent.info[key]
    if key not in info:
        return torch.zeros_like(blank)
    value = _number(info[key])
    if value is None or value.shape != blank.shape:
        raise SpecError(f"{agent.name}: info {key!r} had shape {tuple(blank.shape)}, now it is {info[key]!r:.60}")
    return value
