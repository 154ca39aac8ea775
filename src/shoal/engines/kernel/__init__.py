"""The kernel engine: envs written in Python, compiled by numba."""
