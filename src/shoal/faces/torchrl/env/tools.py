"""What an env can do besides stepping: describe itself, be wrapped, be registered, be run in parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import torch
from tensordict import LazyStackedTensorDict
from torch import nn

from shoal.errors import TensorEnvError
from shoal.faces.torchrl.env.keys import key_of
from shoal.faces.torchrl.fast_td import build

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensordict import TensorDict, TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.transforms import TransformedEnv


class EnvTools(nn.Module):
    """The methods of `EnvBase` that do not step."""

    def fake_tensordict(self: EnvBase) -> TensorDict:
        """A step of zeros: what data of this env looks like."""
        specs = (self.full_state_spec, self.full_action_spec, self.full_observation_spec, self.full_done_spec)
        zeros = [spec.zero() for spec in specs]
        lazy = [td for td in zeros if isinstance(td, LazyStackedTensorDict)]
        # Dense data can be put into a lazy stack, but the rows of a lazy stack have no common shape to be made dense.
        root = lazy[0] if lazy else build({}, self.batch_size, self.device)
        for td in zeros:
            if td is not root:
                root.update(td)
        return root.set("next", self._zeros_of_next(torch.Size()))

    def cardinality(self: EnvBase, tensordict: TensorDictBase | None = None) -> int:
        """The number of different actions."""
        count: int = self.full_action_spec.cardinality()
        return count

    def all_actions(self: EnvBase, tensordict: TensorDictBase | None = None) -> TensorDictBase:
        """All actions, one per row; only those that the masks of the action spec allow."""
        is_masked = any(getattr(leaf, "mask", None) is not None for leaf in self.full_action_spec.values(True, True))
        return self.full_action_spec.enumerate(use_mask=is_masked)

    def check_env_specs(self: EnvBase, *args: Any, **kwargs: Any) -> None:
        """Compare a short rollout with the specs; see `shoal.faces.torchrl.check_env_specs`."""
        from shoal.faces.torchrl.checking import check_env_specs

        check_env_specs(self, *args, **kwargs)

    def append_transform(self: EnvBase, transform: Any) -> TransformedEnv:
        """The env with a transform, or a callable, applied to its data."""
        from shoal.faces.torchrl.transforms import TransformedEnv

        return TransformedEnv(self, transform)

    def add_truncated_keys(self: EnvBase) -> EnvBase:
        """Give every level that has a done flag a truncated one too.

        Returns:
            The env itself.
        """
        spec = self.full_done_spec.clone()
        for level in self._plan().levels:
            if "truncated" not in level.flags:
                like = spec[key_of((*level.path, level.flags[0]))]
                spec[key_of((*level.path, "truncated"))] = like.clone()
        self.full_done_spec = spec
        return self

    def auto_specs_(
        self: EnvBase,
        policy: Callable[..., Any],
        *,
        tensordict: TensorDictBase | None = None,
        action_key: NestedKey | list[NestedKey] = "action",
        done_key: NestedKey | list[NestedKey] | None = None,
        observation_key: NestedKey | list[NestedKey] = "observation",
        reward_key: NestedKey | list[NestedKey] = "reward",
    ) -> EnvBase:
        """Infer the specs from a reset and two steps of a policy: unbounded, with the shapes and dtypes that were seen.

        Args:
            policy: Writes the actions into the TensorDict it gets.
            tensordict: Given to the reset.
            action_key: Where the actions are.
            done_key: Where the done flags are; None takes all that are found.
            observation_key: Where the observations are.
            reward_key: Where the rewards are.

        Returns:
            The env itself.
        """
        from shoal.faces.torchrl.env.inference import infer_specs

        groups = {"action": action_key, "done": done_key, "observation": observation_key, "reward": reward_key}
        infer_specs(self, policy, tensordict, groups)
        return self

    @classmethod
    def register_gym(cls, id: str, **options: Any) -> None:
        """Make the env available as ``gymnasium.make(id)``.

        What its ``reset`` and ``step`` return are tensors, or arrays with ``to_numpy``. ``gymnasium.make`` takes
        ``transform``, ``info_keys`` and ``to_numpy``, too.

        Args:
            id: The id, for instance ``"mine/Counter-v0"``.
            **options: ``entry_point`` (what builds the env, the class itself by default), ``transform``, ``info_keys``,
                ``backend``, ``to_numpy``, the options of ``gymnasium.register``, and arguments of the constructor.
        """
        from shoal.faces.torchrl.env.gym_doors import register

        register(cls, id, **options)

    @staticmethod
    def make_parallel(
        create_env_fn: Callable[..., EnvBase] | Sequence[Callable[..., EnvBase]], *, num_envs: int = 1, **kwargs: Any
    ) -> EnvBase:
        """Several envs in worker processes: a `ParallelEnv` of ``num_envs`` workers."""
        from shoal.faces.torchrl.batched import ParallelEnv

        return ParallelEnv(num_envs, create_env_fn, **kwargs)

    def configure_parallel(self, **options: Any) -> EnvBase:
        """Refuse: only batched envs have such options."""
        raise NotImplementedError(f"{type(self).__name__} runs in this process: only batched envs have such options")

    # -- compilation --------------------------------------------------------------------------------------------------

    def compile(self, *, warmup: int | None = None, **kwargs: Any) -> None:
        """Have torch compile ``step_and_maybe_reset``.

        Args:
            warmup: How many calls to run uncompiled first.
            **kwargs: Given to ``torch.compile``.
        """
        if "step_and_maybe_reset" in self.__dict__:
            raise TensorEnvError(f"{type(self).__name__} is compiled already: call eager() first")
        plain = self.step_and_maybe_reset
        compiled = torch.compile(plain, **kwargs)
        left = warmup or 0

        def run(tensordict: TensorDictBase) -> Any:
            nonlocal left
            left -= 1
            return plain(tensordict) if left >= 0 else compiled(tensordict)

        self.__dict__["step_and_maybe_reset"] = run

    def eager(self) -> Self:
        """Undo `compile`."""
        self.__dict__.pop("step_and_maybe_reset", None)
        return self
