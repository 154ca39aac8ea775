"""Envs of other libraries in TorchRL's dialect: what all wrappers share.

Each wrapper defines what is specific to its library in four methods, which the constructor calls in this order:

    _check_kwargs(kwargs)     refuse arguments that make no sense
    _build_env(**kwargs)      the env of the other library; it becomes ``_env``
    _make_specs(env)          the specs, from that env
    _init_env()               whatever is left to do
"""

from __future__ import annotations

from typing import Any

from shoal.errors import ArgumentError
from shoal.faces.torchrl.env_base import EnvBase


class EnvWrapper(EnvBase):
    """An env of another library; attributes that are missing here are looked up on that env.

    Args:
        device: Where results are put.
        batch_size: The leading dims of everything, where the env does not give them itself.
        allow_done_after_reset: Whether a reset may return an episode that has already ended.
        spec_locked: Whether specs can only be changed after ``set_spec_lock_(False)``.
        run_type_checks: Whether the dtypes of results are compared with the specs.
        convert_actions_to_numpy: Whether the env takes arrays; otherwise it gets the tensors as they are.
        **kwargs: Arguments of the library's own wrapper; always by name.

    Attributes:
        libname: The name of the library.
        git_url: Where the library's repository is.
    """

    libname: str | None = None
    git_url: str | None = None

    def __init__(
        self,
        *args: Any,
        device: Any = None,
        batch_size: Any = None,
        allow_done_after_reset: bool = False,
        spec_locked: bool = True,
        run_type_checks: bool = False,
        convert_actions_to_numpy: bool = True,
        **kwargs: Any,
    ) -> None:
        if args:
            raise ArgumentError(f"{type(self).__name__}: pass arguments by name, got {len(args)} without one")
        super().__init__(
            device=device,
            batch_size=batch_size,
            allow_done_after_reset=allow_done_after_reset,
            spec_locked=spec_locked,
            run_type_checks=run_type_checks,
        )
        self._convert_actions_to_numpy = convert_actions_to_numpy
        self._constructor_kwargs = dict(kwargs)
        self._check_kwargs(kwargs)
        # Not registered as a submodule, even if it is a module: its parameters are its own.
        self.__dict__["_env"] = self._build_env(**kwargs)
        self._make_specs(self._env)
        self.is_closed = False
        self._init_env()

    # ------------------------------------------------------------------ what each library's wrapper defines

    def _check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Refuse arguments that make no sense."""
        if "env" not in kwargs:
            raise TypeError(f"{type(self).__name__} needs the env to wrap: pass env=...")

    def _build_env(self, **kwargs: Any) -> Any:
        """Make the env, or take the one that was given."""
        raise NotImplementedError

    def _make_specs(self, env: Any) -> None:
        """Set the specs."""
        raise NotImplementedError

    def _init_env(self) -> None:
        """Called last, when everything else is set up."""

    # ------------------------------------------------------------------ what all of them do

    @property
    def lib(self) -> Any:
        """The library's module."""
        raise NotImplementedError

    @property
    def wrapped_env(self) -> Any:
        """The env of the other library."""
        return self._env

    def rebuild_with_kwargs(self, **kwargs: Any) -> None:
        """Rebuild the env with some of its arguments changed.

        Example:
            >>> from shoal.faces.torchrl import GymEnv
            >>> env = GymEnv("Pendulum-v1", g=9.81)
            >>> env.rebuild_with_kwargs(g=1.62)
            >>> env.g
            1.62
        """
        self._close_env()
        self._constructor_kwargs.update(kwargs)
        given = dict(self._constructor_kwargs)
        self._check_kwargs(given)
        self.__dict__["_env"] = self._build_env(**given)
        self._make_specs(self._env)
        self._init_env()

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the env; a second call does nothing."""
        if not self.is_closed:
            self.is_closed = True
            self._close_env()

    def _close_env(self) -> None:
        close = getattr(self._env, "close", None)
        if callable(close):
            close()

    def __getattr__(self, name: str) -> Any:
        # Python calls this when normal lookup has failed, possibly because a property of ours has raised.
        if name.startswith("__") or isinstance(getattr(type(self), name, None), property):
            return super().__getattr__(name)
        env = self.__dict__.get("_env")
        if env is None:
            return super().__getattr__(name)
        try:
            return super().__getattr__(name)
        except AttributeError:
            return self._foreign_attribute(name)

    def _foreign_attribute(self, name: str) -> Any:
        """An attribute of the wrapped env."""
        return attribute_of(self._env, name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(env={self._env}, batch_size={self.batch_size}, device={self.device})"


def attribute_of(env: Any, name: str) -> Any:
    """An attribute of an env or of one that it wraps: Gymnasium's wrappers do not pass them on."""
    finder = getattr(env, "get_wrapper_attr", None)
    if callable(finder):
        return finder(name)
    return getattr(env, name)
