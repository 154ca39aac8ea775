"""Envs written in JAX, as stateless envs of TorchRL's dialect: a batch of any size is one call of a compiled function.

tree      nested JAX data and TensorDicts, one as the other, without copies
base      JaxEnv: what the libraries' envs have in common
spaces    specs of actions and observations
brax      BraxEnv, BraxWrapper
jumanji   JumanjiEnv, JumanjiWrapper
gymnax    GymnaxEnv, GymnaxWrapper
"""

from __future__ import annotations

from importlib.util import find_spec

from shoal.errors import BackendUnavailable

if find_spec("jax") is None:
    raise BackendUnavailable("envs written in JAX need jax: pip install 'shoal[jax]'")
