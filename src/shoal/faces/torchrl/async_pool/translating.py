"""Failures of envs, as the pool raises them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.errors import FaultError

if TYPE_CHECKING:
    from collections.abc import Callable


class Translation:
    """Turns failures of envs into what the pool raises for them."""

    def __init__(self, translate: Callable[[FaultError], BaseException]) -> None:
        self._translate = translate

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, FaultError):
            translated = self._translate(error)
            if translated is not error:
                raise translated from translated.__cause__
