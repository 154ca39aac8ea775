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


class Config(dict[str, Any]):
    """A dict whose keys are attributes too, at every level.

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
        for key, value in {**(given or {}), **more}.items():
            self[key] = value

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, Config(value) if type(value) is dict else value)

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


def deep_merge_dicts(original: Mapping[str, Any] | None, new_dict: Mapping[str, Any] | None) -> dict[str, Any]:
    """A new dict with the keys of both; where both have one, that of the second, or both merged if they are dicts.

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
    """What a manager was told.

    Attributes:
        episode_num: Episodes of each env before it is DONE.
        attempts: How often a reset, or a step on the same env, is tried.
        renews: Whether an env that failed is built anew.
        retry_waiting_s: Between two resets of an env that failed.
        auto_reset: Whether an env whose episode has ended is reset without being asked.
        step_timeout: Seconds for a step; None for ever.
        reset_timeout: Seconds for a reset, the way to the env and back included.
        construct_timeout: Seconds until an env must be built.
        context: How worker processes start.
        num_workers: How many of them; None leaves it to ``workers_for``.
        wait_num: How many answers a step waits for at least, in the asynchronous form.
        step_wait_timeout: How long it gathers more of them.
        resets_inside: Whether a step waits for the resets that it has led to.
        is_uneven: Whether envs step at their own pace.
        has_deadline: Whether the caller has set one for steps or resets.
        spares_steps: Whether a step that fails is an abnormal timestep even if its env is not built anew.
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
        """Read a config; forms that run their envs in processes have some more keys.

        Raises:
            MissingSetting: If a key is not there.
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
            own = {
                "construct_timeout": cfg.connect_timeout,
                "context": cfg.context,
                "num_workers": cfg.get("num_workers"),
                "wait_num": cfg.wait_num,
                "step_wait_timeout": _seconds("step_wait_timeout", cfg.step_wait_timeout),
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
        """Whether a step that ends an episode may begin the next, because nothing depends on who does that and when.

        Something does where episodes are counted, deadlines and retries tell steps from resets, or envs are built anew.
        """
        is_plain = self.on_fault == "raise" and not self.has_deadline
        return self.auto_reset and self.episode_num == float("inf") and is_plain

    @property
    def step_attempts(self) -> int:
        """How often a step is tried on the same env; one that is to be built anew is not tried again."""
        return 1 if self.renews or self.spares_steps else self.attempts

    def workers_for(self, num_envs: int) -> int:
        """How many worker processes to start.

        An env that may be lost, or goes at its own pace, has a process to itself. So have all others as long as there
        are cores for them: envs that can only take turns do so faster within one process than as several.
        """
        if self.num_workers is not None:
            return min(self.num_workers, num_envs)
        if self.renews or self.is_uneven or self.has_deadline:
            return num_envs
        return min(num_envs, max(2, usable_cores()))

    @property
    def on_fault(self) -> Restart | str:
        """The same, as the pool's rules."""
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
    """How a form of manager behaves.

    Attributes:
        engine: Where its envs run.
        waits_for_all: Whether a step waits for all envs that it was given.
        quick_reset_s: How long to wait for an env that resets behind the caller's back before going on without it. The
            set of envs that are ready is the same in every run, as long as their resets take less.
        waits_to_be_ready: Whether those who ask who is ready wait if nobody is, and only because of resets.
        closes_on_failure: Whether a step that has failed for good ends all envs.
    """

    engine: str
    waits_for_all: bool = True
    quick_reset_s: float = 0.0
    waits_to_be_ready: bool = True
    closes_on_failure: bool = False


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
