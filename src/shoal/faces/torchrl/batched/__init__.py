"""Several envs as one: SerialEnv, ParallelEnv and EnvCreator.

    serial, parallel     the two classes
    base                 their arguments and their life cycle: lazy start, close, options
    group                one row per env: steps, resets, seeds and states of all or some
    hosts, array_host    where the envs live: here, or on a pool
    crossing             the data of envs on a pool, as rows of bytes
    stacking, shapes     rows of envs as one TensorDict; whether they match the specs
    members              what makes each env, and with which arguments
    slots, probing       what a pool is given to make its envs; looking at envs in a worker process
    attributes, remote   attributes and methods of all envs at once
    views                some of the envs, as an env of their own
    creator              EnvCreator

There is no engine here: waiting, starting processes and noticing that one has died is the pool's work.
"""

from shoal.faces.torchrl.batched.base import BatchedEnv
from shoal.faces.torchrl.batched.creator import EnvCreator, env_creator, get_env_metadata
from shoal.faces.torchrl.batched.parallel import ParallelEnv
from shoal.faces.torchrl.batched.serial import SerialEnv

__all__ = ["BatchedEnv", "EnvCreator", "ParallelEnv", "SerialEnv", "env_creator", "get_env_metadata"]
