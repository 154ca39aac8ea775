"""What happens to every env once its constructor has run.

Subclasses set their specs in ``__init__``, in any order. Afterwards the specs are completed, checked and locked, and
the options that every env class takes, whether its constructor lists them or not, are applied.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from typing import TYPE_CHECKING, Any

from shoal.faces.torchrl.env.keys import path_of

if TYPE_CHECKING:
    from shoal.faces.torchrl.env_base import EnvBase

OPTIONS = ("spec_locked", "auto_reset", "auto_reset_replace", "policy", "compile")


class EnvMeta(ABCMeta):
    """The metaclass of envs: see above. A class that lacks a method that envs need has no instances."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Build an env, and finish it."""
        own = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        taken = [
            name for name in OPTIONS if name in kwargs and (name not in own or name in ("spec_locked", "auto_reset"))
        ]
        options = {name: kwargs.pop(name) for name in taken}
        env = super().__call__(*args, **kwargs)
        # A class may return an env of another class, which has already been finished.
        if not isinstance(type(env), EnvMeta) or env.__dict__.get("_built", True):
            return env
        return _finished(env, options)


def _finished(env: EnvBase, options: dict[str, Any]) -> EnvBase:
    own = env.__dict__
    locked = options.get("spec_locked", own.get("_wants_lock", True))
    auto_reset = options.get("auto_reset", own.get("_wants_auto_reset", False))
    env._complete_specs()
    own["_built"] = True
    env._lock_own_specs(locked)
    finished = env._after_init()
    if auto_reset:
        from shoal.faces.torchrl.transforms.auto_reset import AutoResetEnv, AutoResetTransform  # it is an env itself

        finished = AutoResetEnv(finished, AutoResetTransform(replace=options.get("auto_reset_replace", True)))
    if options.get("policy") is not None:
        finished = _prepared_for(finished, options["policy"])
    wished = options.get("compile")
    if wished:
        finished.compile(**(wished if isinstance(wished, dict) else {}))
    return finished


def _prepared_for(env: EnvBase, policy: Any) -> EnvBase:
    """The env with the transforms that a policy with a state needs: its initial values, and where episodes begin."""
    from shoal.faces.torchrl.transforms.init_tracker import InitTracker
    from shoal.faces.torchrl.transforms.primer import primers_of

    primers = list(primers_of(policy))
    if primers and not any(path_of(key)[-1] == "is_init" for key in env.observation_keys):
        env = env.append_transform(InitTracker())
    for primer in primers:
        env = env.append_transform(primer)
    return env
