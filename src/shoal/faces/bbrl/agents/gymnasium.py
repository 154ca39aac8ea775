"""Env agents, and how to make envs for them."""

from __future__ import annotations

from shoal.faces.bbrl.agents.gym_agent import GymAgent
from shoal.faces.bbrl.agents.making import make_env, record_video
from shoal.faces.bbrl.agents.parallel import ParallelGymAgent
from shoal.faces.bbrl.agents.vec import VecGymAgent

__all__ = ["GymAgent", "ParallelGymAgent", "VecGymAgent", "make_env", "record_video"]
