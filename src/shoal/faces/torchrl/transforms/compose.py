"""Compose: transforms one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from shoal.errors import ArgumentError
from shoal.faces.torchrl.transforms.base import Transform
from shoal.faces.torchrl.transforms.functions import as_transform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch
    from tensordict import TensorDictBase

    from shoal.faces.torchrl.env.keys import NestedKey
    from shoal.faces.torchrl.env_base import EnvBase
    from shoal.faces.torchrl.specs import Composite


class Compose(Transform):
    """Several transforms in a chain, the first of which is nearest to the env.

    Args:
        *links: Transforms or callables, or one list of them.
        transforms: The same list, by name.

    Example:
        >>> from shoal.faces.torchrl import Compose, InitTracker, StepCounter
        >>> chain = Compose(StepCounter(max_steps=10), InitTracker())
        >>> len(chain), type(chain[1]).__name__
        (2, 'InitTracker')
    """

    def __init__(self, *links: Any, transforms: Sequence[Any] | None = None) -> None:
        super().__init__()
        if links and transforms is not None:
            raise ArgumentError("Compose: give transforms one by one or as a list, not both")
        if len(links) == 1 and isinstance(links[0], (list, tuple)):
            links = tuple(links[0])
        self.transforms = nn.ModuleList()
        self.__dict__["_links"] = []
        for link in links if transforms is None else transforms:
            self.append(link)

    # -- the list -----------------------------------------------------------------------------------------------------

    def append(self, transform: Transform | Callable[..., Any]) -> Compose:
        """Add a transform, or those of another Compose, at the end."""
        return self.insert(len(self), transform)

    def insert(self, index: int, transform: Transform | Callable[..., Any]) -> Compose:
        """Add a transform, or those of another Compose, before the one at ``index``."""
        size = len(self)
        if not -size <= index <= size:
            raise ArgumentError(f"Compose.insert: index {index} is beyond the {size} transforms there are")
        place = index + size if index < 0 else index
        for offset, link in enumerate(_links_of(as_transform(transform))):
            link.set_container(self)
            self._links.insert(place + offset, link)
        self._relink()
        return self

    def pop(self, index: int = -1) -> Transform:
        """Remove a transform and return it."""
        taken = self._links.pop(index)
        taken.reset_parent()
        self._relink()
        return taken

    def __getitem__(self, index: int | slice) -> Transform:
        """A transform, or a Compose of clones for a slice."""
        if isinstance(index, slice):
            return Compose(*(link.clone() for link in self._links[index]))
        return self._links[index]

    def __setitem__(self, index: int, transform: Transform) -> None:
        self._links[index].reset_parent()
        link = as_transform(transform)
        link.set_container(self)
        self._links[index] = link
        self._relink()

    def __delitem__(self, index: int | slice) -> None:
        for place in sorted(range(len(self))[index], reverse=True) if isinstance(index, slice) else (index,):
            self.pop(place)

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Transform]:
        return iter(self._links)

    _links: list[Transform]

    def _relink(self) -> None:
        """Bring the module list, which registers parameters, in line with the plain list, which calls go through."""
        self.transforms = nn.ModuleList(self._links)
        self.empty_cache()
        if self._holder is not None:
            self._holder.empty_cache()

    # -- the hooks ----------------------------------------------------------------------------------------------------

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        for link in self._links:
            next_tensordict = link._call(next_tensordict)
        return next_tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        for link in self._links:
            next_tensordict = link._step(tensordict, next_tensordict)
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        for link in self._links:
            tensordict_reset = link._reset(tensordict, tensordict_reset)
        return tensordict_reset

    def _reset_env_preprocess(self, tensordict: TensorDictBase | None) -> TensorDictBase | None:
        for link in reversed(self._links):
            tensordict = link._reset_env_preprocess(tensordict)
        return tensordict

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Apply the transforms to data outside an env."""
        for link in self._links:
            tensordict = link(tensordict)
        return tensordict

    @property
    def changes_inputs(self) -> bool:
        """Whether any of them needs to see what goes into the env."""
        return any(link.changes_inputs for link in self._links)

    @property
    def changes_actions(self) -> bool:
        """Whether any of them changes actions."""
        return any(link.changes_actions for link in self._links)

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        for link in reversed(self._links):
            tensordict = link._inv_call(tensordict)
        return tensordict

    @property
    def recorded(self) -> dict[NestedKey, Any]:
        """What any of them puts beside what callers wrote."""
        return {key: value for link in self._links for key, value in link.recorded.items()}

    # -- specs --------------------------------------------------------------------------------------------------------

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """The observation spec with all of them in place."""
        for link in self._links:
            observation_spec = link.transform_observation_spec(observation_spec)
        return observation_spec

    def transform_reward_spec(self, reward_spec: Composite) -> Composite:
        """The reward spec with all of them in place."""
        for link in self._links:
            reward_spec = link.transform_reward_spec(reward_spec)
        return reward_spec

    def transform_done_spec(self, done_spec: Composite) -> Composite:
        """The done spec with all of them in place."""
        for link in self._links:
            done_spec = link.transform_done_spec(done_spec)
        return done_spec

    def transform_action_spec(self, action_spec: Composite) -> Composite:
        """The action spec with all of them in place."""
        for link in self._links:
            action_spec = link.transform_action_spec(action_spec)
        return action_spec

    def transform_state_spec(self, state_spec: Composite) -> Composite:
        """The state spec with all of them in place."""
        for link in self._links:
            state_spec = link.transform_state_spec(state_spec)
        return state_spec

    def transform_output_spec(self, output_spec: Composite) -> Composite:
        """The output spec with all of them in place."""
        for link in self._links:
            output_spec = link.transform_output_spec(output_spec)
        return output_spec

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        """The input spec with all of them in place."""
        for link in self._links:
            input_spec = link.transform_input_spec(input_spec)
        return input_spec

    def transform_env_device(self, device: torch.device | None) -> torch.device | None:
        """The device with all of them in place."""
        for link in self._links:
            device = link.transform_env_device(device)
        return device

    def transform_env_batch_size(self, batch_size: torch.Size) -> torch.Size:
        """The batch size with all of them in place."""
        for link in self._links:
            batch_size = link.transform_env_batch_size(batch_size)
        return batch_size

    # -- its place ----------------------------------------------------------------------------------------------------

    def _env_below(self, link: Transform) -> EnvBase | None:
        """The env as the transforms before ``link`` leave it."""
        below = self._lower
        place = next(i for i, one in enumerate(self._links) if one is link)
        if below is None or place == 0:
            return below
        from shoal.faces.torchrl.transforms.transformed_env import TransformedEnv

        return TransformedEnv(below, _FirstLinks(self._links[:place]), auto_unwrap=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for link in self._links:
            link._go_back_to(self)

    def clone(self) -> Compose:
        """A chain of clones."""
        return Compose(*(link.clone() for link in self._links))

    def empty_cache(self) -> None:
        """Forget whatever was derived from the env below."""
        super().empty_cache()
        for link in self.__dict__.get("_links", ()):
            link.empty_cache()

    def set_missing_tolerance(self, mode: bool = False) -> None:
        """Set whether missing keys are skipped, for all of them."""
        for link in self._links:
            link.set_missing_tolerance(mode)

    def init(self, tensordict: TensorDictBase) -> None:
        """Prepare all of them."""
        for link in self._links:
            link.init(tensordict)

    def close(self) -> None:
        """Close all of them."""
        for link in self._links:
            link.close()

    def __repr__(self) -> str:
        return f"Compose({', '.join(repr(link) for link in self._links)})"


class _FirstLinks(Compose):
    """The first transforms of a chain, shared with it, so that a later one can step the env below itself."""

    def __init__(self, links: list[Transform]) -> None:
        super().__init__()
        self.__dict__["_links"] = links

    def empty_cache(self) -> None:
        """Forget only what was derived here: the transforms belong to the chain, and keep what they know."""
        Transform.empty_cache(self)


def _links_of(transform: Transform) -> list[Transform]:
    """A transform as a list: those of a Compose, detached from it, or just the transform itself."""
    if not isinstance(transform, Compose):
        return [transform]
    links = list(transform)
    for link in links:
        link.reset_parent()
    return links
