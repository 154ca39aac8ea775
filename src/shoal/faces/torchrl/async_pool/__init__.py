"""AsyncEnvPool and its two backends: envs that each go at their own pace.

    pool          what can be asked of it: send, receive, and the calls that act on all envs
    backends      threads of this process, or worker processes
    members       who makes its envs
    flights       commands on their way: who is addressed, what was given
    exchange      what data may be sent
    translating   failures of envs, as the pool raises them
    counting      how well it is used

The envs are on a pool of shoal's, and its rows are translated as those of batched envs are.
"""

from shoal.faces.torchrl.async_pool.backends import ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
from shoal.faces.torchrl.async_pool.pool import AsyncEnvPool

CLASSES: dict[str, type[AsyncEnvPool]] = {
    "threading": ThreadingAsyncEnvPool,
    "multiprocessing": ProcessorAsyncEnvPool,
}

__all__ = ["AsyncEnvPool", "ProcessorAsyncEnvPool", "ThreadingAsyncEnvPool"]
