"""A window for envs that draw pictures but do not show them: compiled envs, and those of native simulators."""

from __future__ import annotations

import os
from typing import Any

from shoal.errors import BackendUnavailable


class Window:
    """Shows one picture after another; it opens with the first."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._screen: Any = None

    def show(self, frame: Any) -> None:
        """Show a picture, ``uint8 [height, width, 3]``.

        Raises:
            BackendUnavailable: If pygame is not installed.
        """
        pygame = _pygame()
        height, width = frame.shape[:2]
        if self._screen is None or self._screen.get_size() != (width, height):
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._screen = pygame.display.set_mode((width, height))
        self._screen.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()

    def close(self) -> None:
        """Close the window, if it is open."""
        if self._screen is not None:
            self._screen = None
            _pygame().display.quit()


def _pygame() -> Any:
    # SDL would turn SIGTERM into an event that nobody reads, and the program would go on.
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")
    try:
        import pygame
    except ImportError as error:
        raise BackendUnavailable("render_mode='human' needs pygame: pip install 'shoal[envs]'") from error
    return pygame
