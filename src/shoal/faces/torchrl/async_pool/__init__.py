"""AsyncEnvPool and its two backends: envs that each go at their own pace.

pool       what can be asked of it: send, receive, and the calls that act on all envs
backends   threads of this process, or worker processes
flights    commands on their way: who is addressed, what was given
counting   how well it is used
"""

from shoal.faces.torchrl.async_pool.backends import ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
from shoal.faces.torchrl.async_pool.pool import AsyncEnvPool

CLASSES: dict[str, type[AsyncEnvPool]] = {
    "threading": ThreadingAsyncEnvPool,
    "multiprocessing": ProcessorAsyncEnvPool,
}

__all__ = ["AsyncEnvPool", "ProcessorAsyncEnvPool", "ThreadingAsyncEnvPool"]
