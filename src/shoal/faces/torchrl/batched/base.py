"""What SerialEnv and ParallelEnv have in common: their arguments, and when their envs exist.

A batched env knows its specs when it is made, and starts its envs when they are first needed. After a ``close`` it can
be used again: its envs are then made anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import ArgumentError, TensorEnvError, WrongType
from shoal.faces.torchrl.batched.group import EnvGroup
from shoal.faces.torchrl.batched.members import Members

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.torchrl.batched.hosts import Host
    from shoal.faces.torchrl.batched.members import Kwargs, Maker
    from shoal.faces.torchrl.metadata import EnvMetaData


class BatchedEnv(EnvGroup):
    """Several envs as one, each made by a function.

    Args:
        num_workers: How many envs.
        create_env_fn: Makes an env; a list has one function per env, and their envs may differ.
        create_env_kwargs: Keyword arguments for it, or a list with one dict per env.
        device: Where data is expected and returned; by default the device of the envs, if they have one in common.
        use_buffers: False sends all data as it is, whatever the specs say about its shape.
        num_threads: How many threads torch may use in this process while the envs run; None leaves that alone.
        num_sub_threads: How many it may use in each worker process.
        mp_start_method: How worker processes start.
        metadata_from_workers: Look at the specs in a worker process instead of making an env in this one. The envs are
            then started right away, and have to be of one kind.
        shutdown_timeout: Seconds that envs have to close.
        share_individual_td: True for lazy stacks of the envs' data, even where it could be one tensor per leaf.
        shared_memory: Accepted for compatibility, like ``memmap``, ``policy_proof``, ``non_blocking``, ``consolidate``
            and ``daemon``: data goes through memory that workers share in any case.
        memmap: See above.
        policy_proof: See above.
        non_blocking: See above.
        consolidate: See above.
        daemon: See above.
        serial_for_single: Whether a ``ParallelEnv`` of one env should be a ``SerialEnv``.
        pin_memory: No longer available.
        allow_step_when_done: No longer available.
    """

    def __init__(
        self,
        num_workers: int,
        create_env_fn: Maker | Sequence[Maker],
        *,
        create_env_kwargs: Kwargs = None,
        share_individual_td: bool | None = None,
        shared_memory: bool = True,
        memmap: bool = False,
        policy_proof: Any = None,
        device: Any = None,
        num_threads: int | None = None,
        num_sub_threads: int = 1,
        serial_for_single: bool = False,
        non_blocking: bool = False,
        mp_start_method: str | None = None,
        use_buffers: bool | None = None,
        metadata_from_workers: bool = False,
        consolidate: bool = True,
        daemon: bool = False,
        shutdown_timeout: float = 10.0,
        pin_memory: bool = False,
        allow_step_when_done: bool = False,
    ) -> None:
        if pin_memory or allow_step_when_done:
            raise ArgumentError("pin_memory, allow_step_when_done: these options are not available any more")
        if shared_memory and memmap:
            raise TensorEnvError("shared_memory, memmap: only one of the two can be True")
        if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 1:
            raise ArgumentError(f"num_workers: expected an int of at least 1, got {num_workers!r}")
        options = {
            "num_threads": num_threads,
            "num_sub_threads": num_sub_threads,
            "use_buffers": use_buffers,
            "mp_start_method": mp_start_method,
            "shutdown_timeout": shutdown_timeout,
        }
        members = Members(num_workers, create_env_fn, create_env_kwargs)
        metas = self._look_at(members, metadata_from_workers, options)
        for meta in metas:
            _refuse_empty_groups(meta)
        super().__init__(metas, range(num_workers), _common_device(metas) if device is None else device)
        own = self.__dict__
        own["_are_alike"] = own["_are_alike"] and not share_individual_td
        own["num_workers"] = num_workers
        own["_members"] = members
        own["_options"] = options
        own["_host"] = None
        own["_threads_before"] = None

    def _look_at(self, members: Members, from_workers: bool, options: dict[str, Any]) -> list[EnvMetaData]:
        """What the envs are, before they are started."""
        return members.metadata()

    def _open(self) -> Host:
        """Start the envs."""
        raise NotImplementedError

    # ------------------------------------------------------------------ life cycle

    @property
    def is_closed(self) -> bool:
        """Whether no envs are running: they have not been needed yet, or were closed."""
        return self.__dict__.get("_host") is None

    def start(self) -> None:
        """Start the envs now.

        Raises:
            TensorEnvError: If they are already running.
        """
        if not self.is_closed:
            raise TensorEnvError(f"{type(self).__name__} runs already")
        own = self.__dict__
        threads = self._options["num_threads"]
        if threads is not None:
            own["_threads_before"] = torch.get_num_threads()
            torch.set_num_threads(threads)
        try:
            own["_host"] = self._open()
        except BaseException:
            self._restore_threads()
            raise

    def _running(self) -> Host:
        host: Host | None = self.__dict__["_host"]
        if host is None:
            self.start()
            host = self.__dict__["_host"]
        return host

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Close the envs; they are made anew when they are needed again.

        Raises:
            TensorEnvError: If they are not running, unless ``raise_if_closed`` is False.
        """
        host: Host | None = self.__dict__["_host"]
        if host is None:
            if raise_if_closed:
                raise TensorEnvError(f"{type(self).__name__} is closed already")
            return
        self.__dict__["_host"] = None
        self._restore_threads()
        host.close()

    def _restore_threads(self) -> None:
        before = self.__dict__["_threads_before"]
        if before is not None:
            self.__dict__["_threads_before"] = None
            torch.set_num_threads(before)

    def __del__(self) -> None:
        host = self.__dict__.get("_host")
        if host is not None:
            self.__dict__["_host"] = None
            host.close()

    def __getstate__(self) -> dict[str, Any]:
        # Running envs stay where they are and go on; the copy makes its own.
        return {**self.__dict__, "_host": None, "_threads_before": None}

    def to(self, device: Any, *args: Any, **kwargs: Any) -> BatchedEnv:
        """Move the env: data is expected and returned there from now on, but its envs stay where they are."""
        super().to(device, *args, **kwargs)
        host = self.__dict__["_host"]
        if host is not None:
            host.device = self.device
        return self

    # ------------------------------------------------------------------ options

    def update_kwargs(self, kwargs: Kwargs) -> None:
        """Change the keyword arguments that envs are made with, from the next start on."""
        self._members.update(kwargs)

    def configure_parallel(
        self,
        *,
        use_buffers: bool | None = None,
        shared_memory: bool | None = None,
        memmap: bool | None = None,
        mp_start_method: str | None = None,
        num_threads: int | None = None,
        num_sub_threads: int | None = None,
        non_blocking: bool | None = None,
        daemon: bool | None = None,
        shutdown_timeout: float | None = None,
        **others: Any,
    ) -> BatchedEnv:
        """Change options before the start; None leaves one as it is.

        Returns:
            The env itself.

        Raises:
            TensorEnvError: If the envs are already running.
        """
        if not self.is_closed:
            raise TensorEnvError("configure_parallel: the envs run already; close() them first")
        if others:
            raise WrongType(f"configure_parallel: unknown options {sorted(others)}")
        if shared_memory and memmap:
            raise TensorEnvError("shared_memory, memmap: only one of the two can be True")
        given = {
            "use_buffers": use_buffers,
            "mp_start_method": mp_start_method,
            "num_threads": num_threads,
            "num_sub_threads": num_sub_threads,
            "shutdown_timeout": shutdown_timeout,
        }
        self._options.update((name, value) for name, value in given.items() if value is not None)
        return self

    # ------------------------------------------------------------------ parts and attributes

    def __getitem__(self, index: Any) -> EnvGroup:
        """Some of the envs, as an env of their own that shares them; an int gives a batch of one."""
        from shoal.faces.torchrl.batched.views import view_of

        return view_of(self, index)

    def __setitem__(self, index: Any, env: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__}: an env cannot be put in another's place")

    def _attributes(self, ids: Sequence[int], name: str) -> Any:
        """An attribute of some of the envs."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "_host" not in self.__dict__:
                raise
        self._running()
        return self._attributes(self._ids, name)

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "open"
        return f"{type(self).__name__}({self.num_workers} envs, batch_size={tuple(self.batch_size)}, {state})"


def _common_device(metas: Sequence[EnvMetaData]) -> torch.device | None:
    devices = {meta.device for meta in metas}
    return devices.pop() if len(devices) == 1 else None


def _refuse_empty_groups(meta: EnvMetaData) -> None:
    for group in ("input_spec", "output_spec"):
        for name, spec in meta.specs[group].items():
            empty = [
                key for key in spec.keys(include_nested=True) if hasattr(spec[key], "is_empty") and spec[key].is_empty()
            ]
            if empty:
                raise TensorEnvError(f"{name}: {empty[0]!r} is an empty Composite; envs of a batch must have none")
