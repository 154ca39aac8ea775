"""EnvCreator: a factory that knows what it makes, and whose envs can share state."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from typing import TYPE_CHECKING, Any

from tensordict import TensorDictBase

from shoal.engines.process.shipping import pickle_value, unpickle_value
from shoal.errors import TensorEnvError
from shoal.faces.torchrl.metadata import EnvMetaData

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class EnvCreator:
    """Makes envs of one kind, wherever it is called.

    One env is made right away, reset and stepped, to learn what it is. TensorDicts in its state (statistics that a
    transform keeps, for example) are moved to memory that all envs of this creator share, whichever process they are
    in: what one of them learns, all of them know.

    Args:
        create_env_fn: Makes an env.
        create_env_kwargs: Keyword arguments for it.
        share_memory: Whether to share that state.
        **kwargs: More keyword arguments; ``create_env_kwargs`` wins over those of the same name.

    Attributes:
        create_env_fn: What was given.
        create_env_kwargs: All keyword arguments. They win over those of a call.

    Example:
        >>> from shoal.faces.torchrl import EnvCreator, GymEnv, SerialEnv
        >>> creator = EnvCreator(GymEnv, env_name="CartPole-v1")
        >>> creator.meta_data.batch_size
        torch.Size([])
        >>> SerialEnv(2, creator).batch_size
        torch.Size([2])
    """

    def __init__(
        self,
        create_env_fn: Callable[..., Any],
        create_env_kwargs: Mapping[str, Any] | None = None,
        share_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        inner = create_env_fn if isinstance(create_env_fn, EnvCreator) else None
        self.create_env_fn: Callable[..., Any] = create_env_fn if inner is None else inner.create_env_fn
        before = {} if inner is None else inner.create_env_kwargs
        self.create_env_kwargs: dict[str, Any] = {**before, **kwargs, **(create_env_kwargs or {})}
        self.share_memory = share_memory
        self.init_()

    def init_(self) -> EnvCreator:
        """Make an env, and learn from it what it is and which state is shared."""
        env = self.create_env_fn(**self.create_env_kwargs)
        self._meta_data = EnvMetaData.metadata_from_env(env)
        if self.share_memory:
            env.rand_step(env.reset())  # the state of a transform may only be there after a step
            self._state = {key: self._shared(value) for key, value in env.state_dict().items()}
        else:
            self._state = {}
        if not env.is_closed:
            env.close()
        return self

    def _shared(self, value: Any) -> Any:
        if not isinstance(value, TensorDictBase):
            return value
        # Memory behind a file can be opened from any process that learns its name, however that process was started.
        folder = tempfile.mkdtemp(prefix="shoal-state-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return value.detach().clone().memmap_(folder)

    @property
    def meta_data(self) -> EnvMetaData:
        """What the envs are."""
        return self._meta_data

    @meta_data.setter
    def meta_data(self, value: EnvMetaData) -> None:
        self._meta_data = value

    def state_dict(self) -> dict[str, Any]:
        """The state that every env starts with; its TensorDicts are shared."""
        return dict(self._state)

    def make_variant(self, **kwargs: Any) -> EnvCreator:
        """A creator of the same envs with other keyword arguments; this one stays as it is."""
        return EnvCreator(self.create_env_fn, {**self.create_env_kwargs, **kwargs}, share_memory=self.share_memory)

    def __call__(self, **kwargs: Any) -> Any:
        """Make an env."""
        env = self.create_env_fn(**{**kwargs, **self.create_env_kwargs})
        if self._state:
            env.load_state_dict(self._state, strict=False)
        return env

    def __getstate__(self) -> dict[str, Any]:
        # Functions that cannot be imported by name have to travel along.
        return {**vars(self), "create_env_fn": pickle_value(self.create_env_fn, "create_env_fn")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, create_env_fn=unpickle_value(state["create_env_fn"]))

    def __repr__(self) -> str:
        name = getattr(self.create_env_fn, "__name__", type(self.create_env_fn).__name__)
        return f"EnvCreator({name}, {self.create_env_kwargs})"


def is_env(value: Any) -> bool:
    """Whether something is an env, of this dialect or TorchRL's own, and not a class or function that makes one."""
    return not isinstance(value, type) and hasattr(value, "rollout") and hasattr(value, "fake_tensordict")


def env_creator(fun: Callable[..., Any]) -> EnvCreator:
    """An ``EnvCreator`` of a function; it can be used as a decorator.

    Example:
        >>> from shoal.faces.torchrl import GymEnv, env_creator
        >>> @env_creator
        ... def make():
        ...     return GymEnv("CartPole-v1")
        >>> make().batch_size
        torch.Size([])
    """
    return EnvCreator(fun)


def get_env_metadata(env_or_creator: Any, kwargs: Mapping[str, Any] | None = None) -> EnvMetaData:
    """What is known about an env: from itself, from its creator, or from one that a function makes.

    Args:
        env_or_creator: An env, an ``EnvCreator`` (or anything else that has ``meta_data``), or a function that makes an
            env.
        kwargs: Keyword arguments for the function.

    Raises:
        TensorEnvError: If keyword arguments are given for an env, or if the function does not make an env.
    """
    if is_env(env_or_creator):
        if kwargs:
            raise TensorEnvError("kwargs: an env that exists takes none")
        return EnvMetaData.metadata_from_env(env_or_creator)
    known = getattr(env_or_creator, "meta_data", None)
    if isinstance(known, EnvMetaData) and not kwargs:
        return known
    env = env_or_creator(**(kwargs or {}))
    if not is_env(env):
        raise TensorEnvError(f"create_env_fn: expected it to make an env, and it made {type(env).__name__}")
    try:
        return EnvMetaData.metadata_from_env(env)
    finally:
        if not env.is_closed:
            env.close()
