"""Envs whose steps are the predictions of a module.

base       ModelBasedEnvBase: a world model behind the interface of an env
dreamer    DreamerEnv: a latent world model, with a decoder of observations
decoder    DreamerDecoder: the decoder as a transform
"""

from __future__ import annotations

from shoal.faces.torchrl.model_based.base import ModelBasedEnvBase
from shoal.faces.torchrl.model_based.decoder import DreamerDecoder
from shoal.faces.torchrl.model_based.dreamer import DreamerEnv

__all__ = ["DreamerDecoder", "DreamerEnv", "ModelBasedEnvBase"]
