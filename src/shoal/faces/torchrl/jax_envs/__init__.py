"""Envs written in JAX, as stateless envs in TorchRL's dialect: a batch of any size is one call of a compiled function.

tree      nested JAX data as TensorDicts, and back, without copies
base      JaxEnv: what the libraries' envs have in common
brax      BraxEnv, BraxWrapper
jumanji   JumanjiEnv, JumanjiWrapper
gymnax    GymnaxEnv, GymnaxWrapper
"""

from __future__ import annotations

from importlib.util import find_spec

from shoal.errors import BackendUnavailable

if find_spec("jax") is None:
    raise BackendUnavailable("envs written in JAX need jax: pip install 'shoal[jax]'")
