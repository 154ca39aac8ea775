"""The native engine: envs that a simulator of another library runs, many at once."""
