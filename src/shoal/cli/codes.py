"""The exit codes that all commands share."""

from __future__ import annotations

FAILED = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
