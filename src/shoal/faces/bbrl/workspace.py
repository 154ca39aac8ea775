"""The workspace: named tensors, each [time, batch, ...], that agents read and write."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import UnknownVariable, WorkspaceError
from shoal.faces.bbrl.split import _SplitSharedWorkspace
from shoal.faces.bbrl.transitions import transitions_of
from shoal.faces.bbrl.variables import Fixed, Recorded, Tracked, Variable, no_time, variable_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence


class Workspace:
    """A blackboard of named tensors, each ``[time, batch, ...]``.

    The first value of a variable fixes its shape, dtype and device. Values are copied in and out, gradients included:
    the workspace never changes a tensor that you hold, and changing such a tensor never changes the workspace.

    Args:
        workspace: Another workspace, to begin with a copy of it.

    Attributes:
        is_shared: Whether it is in shared memory, in which case its variables and their sizes are fixed.

    Example:
        >>> workspace = Workspace()
        >>> for t in range(3):
        ...     workspace.set("x", t, torch.tensor([t, 10 * t]))
        >>> workspace["x"].tolist()
        [[0, 0], [1, 10], [2, 20]]
        >>> workspace.time_size(), workspace.batch_size()
        (3, 2)
    """

    def __init__(self, workspace: Workspace | None = None) -> None:
        self.is_shared = False
        self._variables: dict[str, Variable] = {}
        # Variables whose later times belong to an earlier run.
        self._stale: set[str] = set()
        # Variables that were only ever written as a whole: a new whole need not be like the last one.
        self._whole: set[str] = set()
        # Variables that were prepared as a whole for runs to come, and that no run has made longer.
        self._plans: set[str] = set()
        if workspace is not None:
            self._take_over((name, full.clone()) for name, full in workspace._fulls())
            self._plans = set(workspace._plans)

    @classmethod
    def _of(cls, fulls: Iterable[tuple[str, torch.Tensor]]) -> Workspace:
        """A workspace that takes ownership of these tensors."""
        made = cls()
        made._take_over(fulls)
        return made

    def _take_over(self, fulls: Iterable[tuple[str, torch.Tensor]]) -> None:
        self._variables = {name: variable_of(full) for name, full in fulls}
        self._whole = set(self._variables)

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Workspace:
        return Workspace._of((name, function(full)) for name, full in self._fulls())

    def _fulls(self) -> Iterable[tuple[str, torch.Tensor]]:
        return ((name, variable.whole()) for name, variable in self._variables.items())

    def _variable(self, name: str) -> Variable:
        try:
            return self._variables[name]
        except KeyError:
            raise UnknownVariable(f"the workspace has no variable {name!r}; it has {list(self._variables)}") from None

    # ------------------------------------------------------------------ reading and writing

    def set(self, var_name: str, t: int, v: torch.Tensor, batch_dims: tuple[int, int] | None = None) -> None:
        """Write the value of a variable at time ``t``; a gap before it is filled with zeros.

        With ``batch_dims``, write only the columns from the first of the two up to, but not including, the second.
        """
        if batch_dims is not None:
            self._set_columns(var_name, t, v, batch_dims)
            return
        if not isinstance(v, torch.Tensor) or not v.ndim:
            raise WorkspaceError(f"{var_name}: expected a tensor of shape [batch, ...], got {v!r:.80}")
        if t < 0:
            raise WorkspaceError(f"{var_name}: time {t} cannot be written; times begin at 0")
        variable = self._variables.get(var_name)
        if variable is None:
            variable = self._create(var_name, v)
        else:
            variable.check(var_name, v)
            if self._whole:
                self._whole.discard(var_name)
            if self._stale and var_name in self._stale:
                self._stale.discard(var_name)
                variable.cut(t)
            if self._plans and t >= variable.length:
                self._plans.discard(var_name)
        if v.requires_grad and not isinstance(variable, Tracked):
            if self.is_shared:
                v = v.detach()  # a graph cannot be shared with other processes
            else:
                variable = self._variables[var_name] = Tracked(variable.whole())
        variable.set(t, v)

    def _set_columns(self, name: str, t: int, value: torch.Tensor, batch_dims: tuple[int, int]) -> None:
        if self.is_shared:
            _SplitSharedWorkspace(self, batch_dims).set(name, t, value)
            return
        row = self.get(name, t).clone()
        row[slice(*batch_dims)] = value
        self.set(name, t, row)

    def _create(self, name: str, value: torch.Tensor) -> Variable:
        if self.is_shared:
            raise WorkspaceError(f"a shared workspace takes no new variable {name!r}; it has {list(self._variables)}")
        self._variables[name] = made = Recorded.like(value.detach())
        return made

    def get(self, var_name: str, t: int, batch_dims: tuple[int, int] | None = None) -> torch.Tensor:
        """The value of a variable at time ``t``, or some columns of it; negative times count from the end."""
        variable = self._variable(var_name)
        length = variable.length
        if not -length <= t < length:
            raise no_time(var_name, t, length)
        return _columns_of(variable.get(t), batch_dims, 0)

    def set_full(self, var_name: str, value: torch.Tensor, batch_dims: tuple[int, int] | None = None) -> None:
        """Replace all time steps of a variable by those of a ``[time, batch, ...]`` tensor.

        If the variable has been written time by time before, the new time steps must be like those. With
        ``batch_dims``, replace only the columns from the first of the two up to, but not including, the second.
        """
        if batch_dims is not None and self.is_shared:
            _SplitSharedWorkspace(self, batch_dims).set_full(var_name, value)
            return
        if batch_dims is not None:
            part, value = value, self.get_full(var_name)
            value[:, slice(*batch_dims)] = part
        if not isinstance(value, torch.Tensor) or value.ndim < 2:
            raise WorkspaceError(f"{var_name}: expected a tensor of shape [time, batch, ...], got {value!r:.80}")
        known = self._variables.get(var_name)
        if known is not None and len(value) and var_name not in self._whole:
            known.check(var_name, value[0])
        if self.is_shared:
            target = self._variable(var_name).whole()
            if target.shape != value.shape:
                raise WorkspaceError(f"{var_name}: shared with shape {tuple(target.shape)}, got {tuple(value.shape)}")
            target.copy_(value.detach())
            self._stale.discard(var_name)
            self._plans.add(var_name)
            return
        if known is None:
            self._whole.add(var_name)
        self._replace(var_name, value.clone(memory_format=torch.contiguous_format))
        self._plans.add(var_name)

    def _replace(self, name: str, full: torch.Tensor) -> None:
        """Take ownership of a tensor that has all time steps of a variable, as a run has written them."""
        self._stale.discard(name)
        self._plans.discard(name)
        self._variables[name] = variable_of(full)

    def get_full(self, var_name: str, batch_dims: tuple[int, int] | None = None) -> torch.Tensor:
        """All time steps of a variable, ``[time, batch, ...]``, or of some columns of it."""
        return _columns_of(self._variable(var_name).whole(), batch_dims, 1).clone()

    def __getitem__(self, key: str | Iterable[str]) -> Any:
        """``ws["a"]`` is ``get_full("a")``; ``a, b = ws["a", "b"]`` reads several."""
        if isinstance(key, str):
            return self.get_full(key)
        return iter([self.get_full(name) for name in key])

    def __contains__(self, name: object) -> bool:
        return name in self._variables

    def __iter__(self) -> Iterator[str]:
        return iter(self._variables)

    def keys(self) -> KeysView[str]:
        """The names of all variables, in the order of their creation."""
        return self._variables.keys()

    @property
    def variables(self) -> Mapping[str, Variable]:
        """All variables by name, in the order of their creation."""
        return MappingProxyType(self._variables)

    def restart(self) -> None:
        """Begin a new run: the first write to a variable drops its values at that time and later.

        Env agents call this when they reset, so that a longer earlier run leaves nothing behind. A shared workspace
        keeps its size, so there, zeros take their place. Variables that are not written again stay as they are, and so
        do those that were prepared with ``set_full``.
        """
        self._stale = self._variables.keys() - self._plans

    def clear(self, name: str | None = None) -> None:
        """Remove all variables, or one; those of a shared workspace are fixed."""
        for each in list(self._variables) if name is None else [name]:
            self.remove_variable(each)

    def remove_variable(self, name: str) -> None:
        """Remove a variable; those of a shared workspace are fixed."""
        self._variable(name)
        if self.is_shared:
            raise WorkspaceError(f"a shared workspace keeps its variables, so {name!r} cannot be removed")
        del self._variables[name]
        for names in (self._stale, self._whole, self._plans):
            names.discard(name)

    # ------------------------------------------------------------------ sizes

    def time_size(self) -> int | None:
        """How many time steps all variables have; None if there is no variable."""
        return self._common("time", {name: variable.length for name, variable in self._variables.items()})

    def batch_size(self) -> int | None:
        """The batch size of all variables; None if there is no variable."""
        return self._common("batch", {name: full.shape[1] for name, full in self._fulls()})

    def _common(self, what: str, sizes: dict[str, int]) -> int | None:
        if len(set(sizes.values())) > 1:
            raise WorkspaceError(f"the variables have different {what} sizes: {sizes}")
        return next(iter(sizes.values()), None)

    # ------------------------------------------------------------------ other workspaces from this one

    def contiguous(self) -> Workspace:
        """A copy of the workspace."""
        return Workspace(self)

    def to(self, device: Any) -> Workspace:
        """A copy of the workspace on another device."""
        return self._map(lambda full: full.to(device, copy=True))

    def select_batch(self, batch_indexes: Any) -> Workspace:
        """Some of the columns, chosen by indices or by a mask; an index may be given several times."""
        self.batch_size()
        columns = torch.as_tensor(batch_indexes)
        if columns.dtype != torch.bool:
            columns = columns.long().reshape(-1)
        return self._map(lambda full: full[:, columns.to(full.device)])

    def select_batch_n(self, n: int) -> Workspace:
        """``n`` random columns, with replacement."""
        return self.select_batch(torch.randint(_known(self.batch_size()), (n,)))

    def subtime(self, from_t: int, to_t: int) -> Workspace:
        """The times from ``from_t`` up to, but not including, ``to_t``."""
        self.time_size()
        return self._map(lambda full: full[from_t:to_t].clone())

    def get_time_truncated(
        self, var_name: str, from_time: int, to_time: int, batch_dims: tuple[int, int] | None = None
    ) -> torch.Tensor:
        """One variable from ``from_time`` up to, but not including, ``to_time``; the end is clipped."""
        if not 0 <= from_time < to_time:
            raise WorkspaceError(f"{var_name}: expected 0 <= from_time < to_time, got {from_time} and {to_time}")
        return _columns_of(self._variable(var_name).whole()[from_time:to_time], batch_dims, 1).clone()

    def get_time_truncated_workspace(self, from_time: int, to_time: int) -> Workspace:
        """All variables from ``from_time`` up to, but not including, ``to_time``; the end is clipped."""
        return Workspace._of((name, self.get_time_truncated(name, from_time, to_time)) for name in self.keys())

    def select_subtime(self, t: torch.Tensor, window_size: int) -> Workspace:
        """A window of its own for each column: ``window_size`` times from ``t[column]`` on."""
        columns = _known(self.batch_size())
        length = min(variable.length for variable in self._variables.values())
        if t.shape != (columns,) or window_size < 1 or bool(((t < 0) | (t > length - window_size)).any()):
            raise WorkspaceError(f"windows of {window_size} from {t.tolist()} do not lie in {length} x {columns}")
        times = t[None, :] + torch.arange(window_size, device=t.device)[:, None]
        column = torch.arange(columns, device=t.device)[None, :]
        return self._map(lambda full: full[times.to(full.device), column.to(full.device)])

    def sample_subworkspace(self, n_times: int, n_batch_elements: int, n_timesteps: int) -> Workspace:
        """``n_times`` random windows of ``n_timesteps``, each of ``n_batch_elements`` different random columns.

        Where all columns are wanted, they stay in order.
        """
        last, width = _known(self.time_size()) - n_timesteps, _known(self.batch_size())
        if last < 0 or n_times < 1 or n_timesteps < 1:
            raise WorkspaceError(f"no {n_times} windows of {n_timesteps} in {self.time_size()} time steps")
        draw = torch.randperm if n_batch_elements < width else torch.arange
        columns = torch.stack([draw(width)[:n_batch_elements] for _ in range(n_times)])
        starts = torch.randint(last + 1, (n_times, 1)).expand_as(columns)
        return self.select_batch(columns.flatten()).select_subtime(starts.flatten(), n_timesteps)

    @staticmethod
    def cat_batch(workspaces: Sequence[Workspace]) -> Workspace:
        """Workspaces with the same times side by side, with the variables of the first."""
        first = workspaces[0]
        for other in workspaces[1:]:
            if not first.keys() <= other.keys() or other.time_size() != first.time_size():
                raise WorkspaceError(
                    "cat_batch: expected the variables of the first workspace and its time size in all workspaces"
                )
        return Workspace._of((name, torch.cat([ws._variable(name).whole() for ws in workspaces], 1)) for name in first)

    def get_transitions(self, no_final_state: bool = False, filter_key: str = "env/done") -> Workspace:
        """All pairs of successive times that are steps of an env, as a workspace ``[2, number of pairs, ...]``.

        A pair whose first half is True in ``filter_key`` leads from one episode to the next, or nowhere, and is left
        out. Pairs are ordered by time, then by column. In the result, ``[0]`` is before the step and ``[1]`` after it:
        the action is in ``action[0]``, the reward in ``reward[1]`` (``reward[0]`` with ``reward_at_t``), and
        ``done[1]``, ``terminated[1]``, ``truncated[1]`` say how the step ended.

        If the env agent runs with ``include_last_state=False``, every pair is a step; where an episode has ended, the
        second half has its last observation, and not the first one of the next episode.

        Args:
            no_final_state: Whether to keep all pairs, with the observations as they are.
            filter_key: The variable that is True where an episode has ended.
        """
        self.time_size()
        if not no_final_state:
            shape = self._variable(filter_key).whole().shape
            if shape[1:].numel() != self.batch_size():
                raise WorkspaceError(f"{filter_key}: expected a flag per time and column, got {tuple(shape)}")
        return Workspace._of(transitions_of(dict(self._fulls()), None if no_final_state else filter_key))

    get_transition = get_transitions

    # ------------------------------------------------------------------ changes in place

    def zero_grad(self) -> None:
        """Detach every variable from its graph."""
        for name, variable in self._variables.items():
            if isinstance(variable, Tracked):
                self._variables[name] = variable_of(variable.whole().detach())

    def copy_time(self, from_time: int, to_time: int, n_steps: int, var_names: Iterable[str] | None = None) -> None:
        """Copy ``n_steps`` times from ``from_time`` on to ``to_time`` and after; the two may overlap.

        A variable grows if the copy reaches beyond its end, unless it is shared. Names that are not there are ignored.
        """
        for name in self._those_of(var_names):
            variable = self._variable(name)
            length = variable.length
            last = max(from_time, to_time) if self.is_shared else from_time
            if min(from_time, to_time, n_steps) < 0 or last + n_steps > length:
                raise WorkspaceError(f"{name}: {n_steps} from {from_time} to {to_time} do not fit into {length} times")
            for offset, step in enumerate([variable.get(from_time + i) for i in range(n_steps)]):
                variable.set(to_time + offset, step)

    def copy_n_last_steps(self, n: int, var_names: Iterable[str] | None = None) -> None:
        """Copy the last ``n`` times to the first ``n``, so that the next epoch goes on where this one ended."""
        names = self._those_of(var_names)
        length = self._common("time", {name: self._variable(name).length for name in names})
        if length is not None:
            self.copy_time(length - n, 0, n, names)

    def _those_of(self, names: Iterable[str] | None) -> list[str]:
        return list(self._variables) if names is None else [name for name in names if name in self]

    # ------------------------------------------------------------------ shared memory

    def _convert_to_shared_workspace(self, n_repeat: int = 1, time_size: int | None = None) -> Workspace:
        """A copy in shared memory, its columns repeated; with ``time_size``, zeros with that many times instead."""
        made = Workspace()
        for name, full in self._fulls():
            wide = full.detach().repeat(1, n_repeat, *([1] * (full.ndim - 2)))
            if time_size is not None:
                wide = wide.new_zeros((time_size, *wide.shape[1:]))
            made._variables[name] = Fixed(name, wide)
        made.is_shared = True
        return made

    def __str__(self) -> str:
        lines = [
            f"  {name}: time_size = {full.shape[0]}, batch_size = {full.shape[1]}, "
            f"shape = {tuple(full.shape[2:])}, {full.dtype}, {full.device}"
            for name, full in self._fulls()
        ]
        return "\n".join(["Workspace:", *lines])

    __repr__ = __str__


def _columns_of(value: torch.Tensor, batch_dims: tuple[int, int] | None, dim: int) -> torch.Tensor:
    return value if batch_dims is None else value[(*[slice(None)] * dim, slice(*batch_dims))]


def _known(size: int | None) -> int:
    if size is None:
        raise WorkspaceError("the workspace is empty")
    return size
