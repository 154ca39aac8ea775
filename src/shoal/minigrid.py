"""What programs take from EnvPool's module of this name: missions as text. The envs are in ``shoal.envs.minigrid``."""

from __future__ import annotations

from shoal.envs.minigrid import decode_mission

__all__ = ["decode_mission"]
