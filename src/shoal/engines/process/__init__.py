"""The process engine: any Python env, several per worker process, results in shared memory.

    pool ── actions ──▶ shared rows ◀── observations, rewards, flags ── worker
      └──── go (one semaphore per lane) ────▶ │ ◀──── done (one semaphore) ────┘
      └──── requests ────▶ socket ◀──── infos, faults ────┘   (only when there is something to say)

A step costs at most one post per lane and one wait, however many envs there are. Everything shared is reached through
inherited file descriptors, so nothing has a name that could be left behind.
"""

from __future__ import annotations

from shoal.engines.process.engine import ProcessEngine

__all__ = ["ProcessEngine"]
