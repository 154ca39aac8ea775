"""Where envs run. Each engine keeps the small protocol in ``shoal.engines.base``."""
