"""Episodes as mp4 files."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from shoal.errors import BackendUnavailable, SpecError

if TYPE_CHECKING:
    import os


def require_video() -> None:
    """Check that videos can be written.

    Raises:
        BackendUnavailable: If they cannot.
    """
    if find_spec("moviepy") is None:
        raise BackendUnavailable("saving replays needs moviepy: pip install 'shoal[video]'")


class Recorder:
    """Gathers the pictures of an episode, and writes them to a file of their own when the episode is over.

    Many envs, in many processes, may write to one folder: the names of their files never clash.

    Args:
        folder: Where the files go; it is created if it does not exist.
        fps: Pictures per second.
    """

    def __init__(self, folder: str | os.PathLike[str], fps: float = 30) -> None:
        require_video()
        self.folder = Path(folder)
        self._fps = fps
        self._name = uuid4().hex[:12]
        self._episode = 0
        self._frames: list[np.ndarray[Any, Any]] = []

    def add(self, frame: Any) -> None:
        """Keep a picture."""
        if not isinstance(frame, np.ndarray):
            raise SpecError(f'replay: expected a picture from render(), got {frame!r}; is render_mode "rgb_array"?')
        self._frames.append(frame)

    def finish(self) -> Path | None:
        """Write what there is; return the file, or None if there was nothing to write."""
        frames, self._frames = self._frames, []
        if not frames:
            return None
        clips: Any = importlib.import_module("moviepy")
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"rl-video-{self._name}-episode-{self._episode}.mp4"
        self._episode += 1
        clip = clips.ImageSequenceClip(frames, fps=self._fps)
        clip.write_videofile(str(file), logger=None)
        clip.close()
        return file
