"""Configs with attributes, and the settings that a manager reads from one."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shoal.errors import MissingSetting, WrongSetting
from shoal.machine import usable_cores
from shoal.recovery import Restart

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRY_TYPES = ("reset", "renew")
_WITHOUT_EFFECT = ("shared_memory", "copy_on_get")


class Config(dict[str, Any]):
    """A dict whose keys are attributes too, at every level, also of dicts in lists and tuples.

    Example:
        >>> cfg = Config({"manager": {"max_retry": 2}})
        >>> cfg.manager.max_retry
        2
        >>> cfg.manager.max_retry = 3
        >>> cfg["manager"]["max_retry"]
        3
    """

    def __init__(self, given: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__()
        self.update(given or {}, **more)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _with_attributes(value))

    def update(self, given: Any = (), /, **more: Any) -> None:
        """Set keys, from a mapping or from pairs, and from keywords."""
        for key, value in dict(given, **more).items():
            self[key] = value

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """The value of a key, which is set to ``default`` first if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def __getattr__(self, key: str) -> Any:
        try:
            return self[key]
        except KeyError:
            raise MissingSetting(f"the config has no key {key!r}, only {sorted(self)}") from None

    __setattr__ = __setitem__

    def __delattr__(self, key: str) -> None:
        self.pop(key)

    def __deepcopy__(self, memo: dict[int, Any]) -> Config:
        return Config({key: deepcopy(value, memo) for key, value in self.items()})

    def __reduce__(self) -> tuple[Any, ...]:
        return Config, (dict(self),)


def _with_attributes(value: Any) -> Any:
    if type(value) is dict:
        return Config(value)
    if type(value) in (list, tuple):
        return type(value)(map(_with_attributes, value))
    return value


def deep_merge_dicts(original: Mapping[str, Any] | None, new_dict: Mapping[str, Any] | None) -> dict[str, Any]:
    """A new dict with the keys of both; for a key in both, the second value wins, or two dicts are merged.

    Example:
        >>> deep_merge_dicts({"env": {"n": 1, "id": "x"}}, {"env": {"n": 2}, "seed": 0})
        {'env': {'n': 2, 'id': 'x'}, 'seed': 0}
    """
    merged: dict[str, Any] = deepcopy(original) if isinstance(original, dict) else dict(original or {})
    for key, value in (new_dict or {}).items():
        is_both = isinstance(merged.get(key), dict) and isinstance(value, dict)
        merged[key] = deep_merge_dicts(merged[key], value) if is_both else deepcopy(value)
    return merged


@dataclass(frozen=True)
class Settings:
    """How a manager was configured.

    Attributes:
        episode_num: Episodes of each env before it is DONE.
        attempts: How often a reset, or a step on the same env, is tried.
        renews: Whether an env that failed is built anew.
        retry_waiting_s: Seconds between two resets of an env that failed.
        auto_reset: Whether an env whose episode has ended is reset without being asked.
        step_timeout: Seconds for a step; None for no limit.
        reset_timeout: Seconds for a reset, including the way to the env and back.
        construct_timeout: Seconds until an env must be built.
        context: How worker processes start.
        num_workers: How many worker processes; None leaves it to ``workers_for``.
        wait_num: How many answers an asynchronous step waits for at least.
        step_wait_timeout: How long such a step gathers more answers; None until all envs have answered.
        resets_inside: Whether a step waits for the resets that it causes.
        is_uneven: Whether envs step at their own pace.
        has_deadline: Whether the caller has set a deadline for steps or resets.
        spares_steps: Whether a failed step becomes an abnormal timestep even if its env is not built anew.
    """

    episode_num: float
    attempts: int
    renews: bool
    retry_waiting_s: float
    auto_reset: bool
    step_timeout: float | None
    reset_timeout: float | None
    construct_timeout: float | None = 60.0
    context: str | None = None
    num_workers: int | None = None
    wait_num: float = float("inf")
    step_wait_timeout: float | None = None
    resets_inside: bool = True
    spares_steps: bool = False
    is_uneven: bool = False
    has_deadline: bool = False

    @classmethod
    def of(cls, cfg: Mapping[str, Any], *, has_processes: bool = False) -> Settings:
        """Read a config; managers that run their envs in processes have some more keys.

        Raises:
            MissingSetting: If a key is missing.
            WrongSetting: If a value makes no sense.
        """
        cfg = Config(cfg)
        retry_type = cfg.retry_type
        if retry_type not in RETRY_TYPES:
            raise WrongSetting(f"retry_type: expected one of {RETRY_TYPES}, got {retry_type!r}")
        own: dict[str, Any] = {}
        reset_timeout = _seconds("reset_timeout", cfg.reset_timeout)
        if has_processes:
            limits = [s for s in (reset_timeout, _seconds("connect_timeout", cfg.connect_timeout)) if s is not None]
            reset_timeout = min(limits, default=None)
            if cfg.reset_inplace and not cfg.auto_reset:
                raise WrongSetting("reset_inplace: a step that resets its envs needs auto_reset=True")
            for key in _WITHOUT_EFFECT:  # a config without them is as incomplete as any other
                getattr(cfg, key)
            own = {
                "construct_timeout": cfg.connect_timeout,
                "context": cfg.context,
                "num_workers": cfg.get("num_workers"),
                "wait_num": cfg.wait_num,
                "step_wait_timeout": _seconds("step_wait_timeout", cfg.step_wait_timeout or None),
                "resets_inside": bool(cfg.reset_inplace),
            }
        return cls(
            episode_num=cfg.episode_num,
            attempts=max(1, int(cfg.max_retry)),
            renews=retry_type == "renew",
            retry_waiting_s=cfg.retry_waiting_time,
            auto_reset=bool(cfg.auto_reset),
            step_timeout=_seconds("step_timeout", cfg.step_timeout),
            reset_timeout=reset_timeout,
            has_deadline=not (cfg.step_timeout is None and cfg.reset_timeout is None),
            **own,
        )

    @property
    def begins_in_steps(self) -> bool:
        """Whether a step that ends an episode may also begin the next one.

        It may not where it matters who begins an episode and when: where episodes are counted, where deadlines and
        retries distinguish steps from resets, or where envs are built anew.
        """
        is_plain = self.on_fault == "raise" and not self.has_deadline
        return self.auto_reset and self.episode_num == float("inf") and is_plain

    @property
    def step_attempts(self) -> int:
        """How often a step is tried on the same env; an env that will be built anew gets no second try."""
        return 1 if self.renews or self.spares_steps else self.attempts

    def workers_for(self, num_envs: int) -> int:
        """How many worker processes to start.

        An env that may be lost, or that steps at its own pace, gets a process to itself. So do all others while there
        are cores for them: envs that can only take turns do so faster within one process than in several.
        """
        if self.num_workers is not None:
            return min(self.num_workers, num_envs)
        if self.renews or self.is_uneven or self.has_deadline:
            return num_envs
        return min(num_envs, max(2, usable_cores()))

    @property
    def on_fault(self) -> Restart | str:
        """What to do about faults, in the pool's terms."""
        if self.attempts == 1 and not self.renews and not self.spares_steps:
            return "raise"
        return Restart(
            budget=None,
            backoff_s=self.retry_waiting_s,
            longest_s=self.retry_waiting_s,
            tries=self.attempts,
            waits_first=True,
            keeps_env=not self.renews,
            spares_steps=self.renews or self.spares_steps,
        )


@dataclass(frozen=True)
class Manners:
    """How a kind of manager behaves.

    Attributes:
        engine: Where its envs run.
        in_turn: Whether each env is told to step or to reset only when the one before it has finished.
        waits_for_all: Whether a step waits for all envs that it was given.
        quick_reset_s: How long to wait for an env that is reset automatically before going on without it. As long as
            resets take less than this, the set of ready envs is the same in every run.
        waits_to_be_ready: Whether asking which envs are ready waits for resets under way if none is ready yet.
        closes_on_failure: Whether a step that has failed for good ends all envs.
        spares_recordings: Whether ``reset`` leaves running envs alone while they record.
    """

    engine: str
    in_turn: bool = False
    waits_for_all: bool = True
    quick_reset_s: float = 0.0
    waits_to_be_ready: bool = True
    closes_on_failure: bool = False
    spares_recordings: bool = True


def _seconds(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise WrongSetting(f"{name}: expected seconds or None, got {value!r}") from None
    if not seconds > 0:
        raise WrongSetting(f"{name}: expected more than 0 seconds, got {value!r}")
    return seconds
