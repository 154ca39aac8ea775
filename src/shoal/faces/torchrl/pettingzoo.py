"""PettingZoo's envs in TorchRL's dialect: agents in groups, each group with a TensorDict of its own.

    td                     done, terminated, truncated: those of the env
    td["archer"]           one row per agent of the group ``archer``: observation, action, reward, flags
    td["archer", "mask"]   with ``use_mask``: whose turn it is, or who is still there

Agents that have left keep their rows, now of zeros, and their flags stay set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env.done import FLAGS
from shoal.faces.torchrl.env_wrapper import EnvWrapper
from shoal.faces.torchrl.fast_td import build
from shoal.faces.torchrl.gym_making import ClassProperty
from shoal.faces.torchrl.pettingzoo_agents import Agent, AgentGroup
from shoal.faces.torchrl.pettingzoo_groups import MarlGroupMapType as MarlGroupMapType
from shoal.faces.torchrl.pettingzoo_groups import group_map_of
from shoal.faces.torchrl.pettingzoo_making import available_tasks, make_task, pettingzoo_library
from shoal.faces.torchrl.specs import Categorical, Composite, Unbounded

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from tensordict import TensorDictBase


class PettingZooWrapper(EnvWrapper):
    """A PettingZoo env: a parallel one, or one whose agents take turns (AEC).

    Args:
        env: The env.
        return_state: Whether to return the env's ``state()`` as ``"state"``.
        group_map: Which agents share a TensorDict: a ``MarlGroupMapType``, or the names of agents by group. By default
            agents that act together are grouped by the part of their names before a number, and others are alone.
        use_mask: Whether each group has a ``"mask"`` that says whose turn it is, or who is still there. Needed where
            agents take turns, and where they leave before the episode ends.
        categorical_actions: Whether discrete actions are integers; otherwise they are one-hot.
        seed: A seed for the first reset.
        done_on_any: Whether the env is done as soon as one agent is, rather than with the last one. By default True
            for parallel envs, and False where agents take turns.
        **kwargs: See ``EnvWrapper``.

    Attributes:
        group_map: The names of agents by group.

    Example:
        >>> import pettingzoo
        >>> from shoal.faces.torchrl import PettingZooWrapper
        >>> env = PettingZooWrapper(pettingzoo.make("parallel", "classic/rps-v2"))
        >>> env.group_map
        {'player': ['player_0', 'player_1']}
        >>> env.rollout(3)["next", "player", "reward"].shape
        torch.Size([3, 2, 1])
    """

    libname = "pettingzoo"
    git_url = "https://github.com/Farama-Foundation/PettingZoo"

    def __init__(
        self,
        env: Any = None,
        return_state: bool = False,
        group_map: MarlGroupMapType | dict[str, list[str]] | None = None,
        use_mask: bool = False,
        categorical_actions: bool = True,
        seed: int | None = None,
        done_on_any: bool | None = None,
        **kwargs: Any,
    ) -> None:
        own = self.__dict__
        own["return_state"], own["use_mask"], own["categorical_actions"] = return_state, use_mask, categorical_actions
        own["_wished_groups"], own["_first_seed"], own["done_on_any"] = group_map, seed, done_on_any
        if env is not None:
            kwargs["env"] = env
        super().__init__(**kwargs)

    # ------------------------------------------------------------------ making one

    def _build_env(self, env: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if kwargs:
            raise TypeError(f"{type(self).__name__} does not know {sorted(kwargs)}")
        if not hasattr(env, "possible_agents") or not callable(getattr(env, "observation_space", None)):
            raise ArgumentError(f"env: expected an env of PettingZoo's, got {type(env).__name__}")
        own = self.__dict__
        own["parallel"] = not hasattr(env, "agent_iter")
        if not self.parallel and not self.use_mask:
            raise ArgumentError(
                "use_mask: agents take turns here, so a mask has to say whose turn it is: use_mask=True"
            )
        if self.done_on_any is None:
            own["done_on_any"] = self.parallel
        return env

    def _make_specs(self, env: Any) -> None:
        own = self.__dict__
        names = [str(agent) for agent in env.possible_agents]
        own["group_map"] = group_map_of(self._wished_groups, names, self.parallel)
        own["_names"] = dict(zip(names, env.possible_agents, strict=True))
        own["_ended"] = {}
        _, infos = self._restart(seed=self._first_seed)
        own["_groups"] = groups = [
            AgentGroup(group, [self._agent(env, name, infos) for name in members], self.use_mask, self.device)
            for group, members in self.group_map.items()
        ]
        self.action_spec = self._by_group({group.name: group.action_spec() for group in groups})
        self.reward_spec = self._by_group({group.name: group.reward_spec() for group in groups})
        observed = self._by_group({group.name: group.observation_spec() for group in groups})
        if self.return_state:
            state = np.asarray(env.state())
            dtype = torch.from_numpy(np.zeros((), state.dtype)).dtype
            observed["state"] = Unbounded(shape=state.shape, dtype=dtype, device=self.device)
        self.observation_spec = observed
        done = self._by_group({group.name: group.done_spec() for group in groups})
        for name in FLAGS:
            done[name] = Categorical(2, shape=(1,), dtype=torch.bool, device=self.device)
        self.done_spec = done

    def _agent(self, env: Any, name: str, infos: Mapping[str, Any]) -> Agent:
        agent = self._names[name]
        observation, action = env.observation_space(agent), env.action_space(agent)
        return Agent(name, observation, action, self.categorical_actions, infos.get(name) or {}, self.device)

    def _by_group(self, specs: dict[str, Any]) -> Composite:
        return Composite(specs, device=self.device)

    # ------------------------------------------------------------------ reset and step

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        observations, infos = self._restart(**kwargs)
        return self._made(observations, infos, None)

    def _restart(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; return what the agents observe, and their infos."""
        given = {key: value for key, value in kwargs.items() if value is not None}
        self._ended.clear()
        if self.parallel:
            observations, infos = self._env.reset(**given)
            return _named(observations), _named(infos)
        self._env.reset(**given)
        return self._observed(list(self._env.agents)), _named(self._env.infos)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.parallel:
            listed = {str(agent) for agent in self._env.agents}
            actions = self._actions(tensordict, listed.__contains__)
            observations, rewards, terminated, truncated, infos = self._env.step(
                {self._names[name]: action for name, action in actions.items()}
            )
            self._note_ends(terminated, truncated)
            return self._made(_named(observations), _named(infos), _named(rewards))
        env = self._env
        (action,) = self._actions(tensordict, str(env.agent_selection).__eq__).values()
        env.step(action)
        rewards, infos = _named(env.rewards), _named(env.infos)
        self._note_ends(env.terminations, env.truncations)
        leaving = [agent for agent in env.agents if self._is_over(str(agent))]
        observations = self._observed(leaving)
        self._dismiss_leaving()
        observations.update(self._observed([agent for agent in env.agents if not self._is_over(str(agent))]))
        return self._made(observations, infos, rewards)

    def _actions(self, td: TensorDictBase, wanted: Any) -> dict[str, Any]:
        return {
            name: action for group in self._groups for name, action in group.actions(td.get(group.name), wanted).items()
        }

    def _observed(self, agents: list[Any]) -> dict[str, Any]:
        return {str(agent): self._env.observe(agent) for agent in agents}

    def _dismiss_leaving(self) -> None:
        """Let agents that are done take their last, empty turn, so that the next turn is one of play."""
        env = self._env
        if self._is_everybody_over():
            return
        for _ in range(len(self._names)):
            if not env.agents or not self._is_over(str(env.agent_selection)):
                return
            env.step(None)

    def _note_ends(self, terminated: Mapping[Any, Any], truncated: Mapping[Any, Any]) -> None:
        for agent in {**terminated, **truncated}:
            before = self._ended.get(str(agent), (False, False))
            now = bool(terminated.get(agent, False)), bool(truncated.get(agent, False))
            self._ended[str(agent)] = (before[0] or now[0], before[1] or now[1])

    def _is_over(self, name: str) -> bool:
        return any(self._ended.get(name, ()))

    def _is_everybody_over(self) -> bool:
        return all(self._is_over(name) for name in self._names)

    # ------------------------------------------------------------------ results

    def _made(
        self, observations: dict[str, Any], infos: dict[str, Any], rewards: dict[str, Any] | None
    ) -> TensorDictBase:
        entries: dict[str, Any] = {}
        acting = self._acting()
        for group in self._groups:
            extra = {agent.name: self._extra(agent.name, rewards) for agent in group.agents}
            entries[group.name] = rows = group.rows(observations, infos, acting, extra)
            if group.has_action_masks:
                self._allow(group, rows)
        if self.return_state:
            entries["state"] = torch.from_numpy(np.array(self._env.state()))
        entries.update(self._root_flags())
        made: TensorDictBase = build(entries, self.batch_size)
        return made if self.device is None else made.to(self.device)

    def _extra(self, name: str, rewards: dict[str, Any] | None) -> dict[str, torch.Tensor]:
        terminated, truncated = self._ended.get(name, (False, False))
        flags = (terminated or truncated, terminated, truncated)
        extra = {key: torch.tensor([flag]) for key, flag in zip(FLAGS, flags, strict=True)}
        if rewards is not None:
            extra["reward"] = torch.tensor([float(rewards.get(name, 0.0))])
        return extra

    def _acting(self) -> dict[str, bool]:
        """Whose turn it is: that of all agents still in play, or that of the selected one."""
        env = self._env
        listed = {str(agent) for agent in env.agents}
        if not self.parallel and env.agents:
            listed &= {str(env.agent_selection)}
        return {name: name in listed and not self._is_over(name) for name in self._names}

    def _root_flags(self) -> dict[str, torch.Tensor]:
        ends = [self._ended.get(name, (False, False)) for name in self._names]
        over = [terminated or truncated for terminated, truncated in ends]
        done = any(over) if self.done_on_any else all(over)
        flags = (done, done and any(end[0] for end in ends), done and any(end[1] for end in ends))
        return {name: torch.tensor([flag]) for name, flag in zip(FLAGS, flags, strict=True)}

    def _allow(self, group: AgentGroup, rows: TensorDictBase) -> None:
        """Set the masks of the action spec, so that random actions are allowed ones."""
        spec = self.full_action_spec[group.name, "action"]
        if hasattr(spec, "update_mask"):
            spec.update_mask(rows.get("action_mask"))
            return
        for part, row in zip(spec.unbind(0), rows.unbind(0), strict=True):
            part.update_mask(row.get("action_mask"))

    def _set_seed(self, seed: int | None) -> None:
        self._restart(seed=seed)

    # ------------------------------------------------------------------ the library

    @property
    def lib(self) -> ModuleType:
        """The library."""
        return pettingzoo_library()

    @ClassProperty
    def available_envs(cls) -> list[str]:
        """The names of all tasks, as ``family/name_v0``."""
        return available_tasks()


class PettingZooEnv(PettingZooWrapper):
    """A PettingZoo env, made from its name.

    Args:
        task: Its name, with the family or without: ``"classic/tictactoe_v3"`` or ``"tictactoe_v3"``.
        parallel: Whether agents act together, or take turns.
        **kwargs: See ``PettingZooWrapper``; arguments that it does not know are passed on to the env.

    Example:
        >>> from shoal.faces.torchrl import PettingZooEnv
        >>> env = PettingZooEnv("classic/rps_v2", parallel=True, max_cycles=5)
        >>> env.rollout(10).shape
        torch.Size([5])
    """

    def __init__(self, task: str, parallel: bool, **kwargs: Any) -> None:
        super().__init__(task=task, is_parallel=parallel, **kwargs)

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        pettingzoo_library()

    def _build_env(self, task: str, is_parallel: bool, **kwargs: Any) -> Any:  # type: ignore[override]
        return super()._build_env(make_task(task, is_parallel, kwargs))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(task={self._constructor_kwargs['task']}, batch_size={self.batch_size})"


def _named(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(agent): value for agent, value in values.items()}
