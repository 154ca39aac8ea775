"""AsyncEnvPool and its two backends: envs that each go at their own pace.

    pool          what can be asked of it: send, receive, and the calls that act on all envs
    backends      threads of this process, or worker processes
    members       what makes its envs
    flights       commands on their way: which envs they address, what they were given
    exchange      what data may be sent
    translating   failures of envs, as the pool raises them
    counting      how well it is used

The envs run on a shoal pool, whose rows are translated like those of batched envs.
"""

from shoal.faces.torchrl.async_pool.backends import ProcessorAsyncEnvPool, ThreadingAsyncEnvPool
from shoal.faces.torchrl.async_pool.pool import AsyncEnvPool

CLASSES: dict[str, type[AsyncEnvPool]] = {
    "threading": ThreadingAsyncEnvPool,
    "multiprocessing": ProcessorAsyncEnvPool,
}

__all__ = ["AsyncEnvPool", "ProcessorAsyncEnvPool", "ThreadingAsyncEnvPool"]
