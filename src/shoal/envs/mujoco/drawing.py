"""Pictures of a simulation: one renderer for all envs of a simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from shoal.errors import ArgumentError, BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Camera:
    """How to draw.

    Attributes:
        width: The width of the pictures.
        height: The height of the pictures.
        camera_id: A camera of the model; None for a free camera.
        camera_name: The same, by name.
        config: Fields of ``mjvCamera`` for the free camera.
        max_geom: How many geoms a picture may have.
        in_metres: Whether depth is in metres; otherwise it is 0 at the near plane of the camera and 1 at the far one.
    """

    width: int = 480
    height: int = 480
    camera_id: int | None = None
    camera_name: str | None = None
    config: Mapping[str, Any] | None = None
    max_geom: int = 1000
    in_metres: bool = True

    def of(self, model: mujoco.MjModel) -> Any:
        """The camera itself.

        Raises:
            ArgumentError: If the model has no such camera.
        """
        if self.camera_id is not None and self.camera_name is not None:
            raise ArgumentError("camera_id and camera_name were both given: one of them is enough")
        chosen = self.camera_name if self.camera_id is None else self.camera_id
        if chosen is None and mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track") >= 0 and not self.config:
            chosen = "track"
        if chosen is not None and chosen != -1:
            try:
                return model.camera(chosen).id
            except (KeyError, IndexError) as error:
                raise ArgumentError(f"camera_id: the model has no camera {chosen!r}") from error
        camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(model, camera)
        for name, value in (self.config or {}).items():
            if isinstance(value, np.ndarray):
                getattr(camera, name)[:] = value
            else:
                setattr(camera, name, value)
        if camera.trackbodyid >= 0 and "trackbodyid" in (self.config or {}):
            camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
        return camera


# Why this process cannot draw. Without a screen, a second attempt to find one would end the process.
_failures: list[str] = []


class Drawer:
    """Draws simulations of one model.

    Raises:
        BackendUnavailable: If this machine has no way to draw without a screen.
    """

    def __init__(self, model: mujoco.MjModel, camera: Camera) -> None:
        self._camera = camera
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, camera.width)
        model.vis.global_.offheight = max(model.vis.global_.offheight, camera.height)
        self._chosen = camera.of(model)
        if _failures:
            raise BackendUnavailable(_failures[0])
        try:
            self._renderer = mujoco.Renderer(model, camera.height, camera.width, camera.max_geom)
        except Exception as error:
            _failures.append(
                f"render: MuJoCo cannot draw here ({error}); without a screen it needs EGL or OSMesa: "
                "set MUJOCO_GL=egl or MUJOCO_GL=osmesa before mujoco is imported, and install libegl1 or libosmesa6"
            )
            raise BackendUnavailable(_failures[0]) from error

    def draw(self, model: mujoco.MjModel, data: mujoco.MjData, mode: str, camera_id: int | None = None) -> Any:
        """A picture, or the depth of every pixel; ``camera_id`` chooses another camera than the usual one."""
        self._renderer._model = model  # the env may have its own colours and sizes
        (self._renderer.enable_depth_rendering if mode == "depth_array" else self._renderer.disable_depth_rendering)()
        camera = self._chosen if camera_id is None else replace(self._camera, camera_id=camera_id, camera_name=None)
        self._renderer.update_scene(data, camera.of(model) if isinstance(camera, Camera) else camera)
        return self._depth_buffer() if mode == "depth_array" and not self._camera.in_metres else self._renderer.render()

    def _depth_buffer(self) -> Any:
        """Depth as the graphics library has it; the renderer's own is in metres, and its edges are others."""
        renderer = self._renderer
        renderer._gl_context.make_current()
        renderer._mjr_context.readDepthMap = mujoco.mjtDepthMap.mjDEPTH_ZERONEAR
        depth = np.empty((renderer.height, renderer.width), np.float32)
        mujoco.mjr_render(renderer._rect, renderer.scene, renderer._mjr_context)
        mujoco.mjr_readPixels(None, depth, renderer._rect, renderer._mjr_context)
        return np.flipud(depth).copy()

    def close(self) -> None:
        """End the renderer."""
        self._renderer.close()
