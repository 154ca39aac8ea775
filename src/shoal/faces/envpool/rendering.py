"""Pictures of single envs, all of one size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.errors import ActionError, ArgumentError, StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.faces.envpool.base import EnvPool
    from shoal.faces.envpool.config import Rendering
    from shoal.pool import Pool


def draw(face: EnvPool, env_ids: int | Sequence[int] | None, camera_id: int | None) -> npt.NDArray[np.uint8] | None:
    """Frames of the given envs as one array; None in the mode ``"human"``, in which one env is shown."""
    pool, rendering = face.pool, face.spec.settings.rendering
    if rendering.mode is None:
        raise StateError("render: the pool was made without a render_mode; pass render_mode='rgb_array' to make")
    ids = [rendering.env_id] if env_ids is None else _listed(env_ids)
    is_shown = rendering.mode == "human"
    if is_shown and ids != [rendering.env_id]:
        raise ArgumentError(f"env_ids: only env {rendering.env_id} (render_env_id) has a window, got {ids}")
    once = list(dict.fromkeys(ids))  # an env is drawn once, however often its picture is wanted
    pictures = pool.call("render", *_camera(face, camera_id), env_id=once)
    if is_shown and face.window is None:
        return None
    frame_of = {i: _sized(_frame(picture, pool), rendering) for i, picture in zip(once, pictures, strict=True)}
    frames = np.stack([frame_of[i] for i in ids])
    if not is_shown or face.window is None:
        return frames
    face.window.show(frames[0])
    return None


def _listed(env_ids: Any) -> list[int]:
    """Ids as a list, even if there is only one; whether there are such envs is for the pool to judge."""
    try:
        array = np.atleast_1d(np.asarray(env_ids))
    except ValueError:
        raise ActionError(f"env_ids: expected a list of ints, got {env_ids!r}") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ActionError(f"env_ids: expected a list of ints, got {env_ids!r}")
    ids: list[int] = array.tolist()
    return ids


def _camera(face: EnvPool, camera_id: int | None) -> tuple[int, ...]:
    """The camera to draw from, as an argument, if it is not the one that the pool was made with.

    An env without cameras has one view, whichever is asked for.
    """
    if camera_id in (None, face.spec.settings.rendering.camera_id):
        return ()
    task = face.spec.task
    options = task.options()[0]
    if "camera_id" in options and task.is_native:
        return (int(camera_id),)
    if not {"camera_id", "render_camera_id"} & options.keys():
        return ()
    raise ArgumentError("camera_id: a camera is chosen when the pool is made, with render_camera_id")


def _frame(picture: Any, pool: Pool) -> npt.NDArray[np.uint8]:
    frame = np.asarray(picture)
    if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise StateError(f"render: {pool.spec.id} does not draw pictures, it gave {type(picture).__name__}")
    return frame


def _sized(frame: npt.NDArray[np.uint8], rendering: Rendering) -> npt.NDArray[np.uint8]:
    """The frame in the wanted size: each pixel is the nearest one in the original."""
    height, width = rendering.height or frame.shape[0], rendering.width or frame.shape[1]
    if (height, width) == frame.shape[:2]:
        return frame
    rows = _nearest(height, frame.shape[0])
    columns = _nearest(width, frame.shape[1])
    return frame[rows[:, None], columns]


def _nearest(count: int, size: int) -> npt.NDArray[np.int64]:
    """Which of ``size`` pixels is under the centre of each of ``count``."""
    return (np.arange(count) * 2 + 1) * size // (2 * count)
