"""Pendulums in worker processes behind TorchRL's interface, and the same ones at their own pace.

It needs ``pip install 'shoal[torch]'``. What comes out depends on the seeds, and not on how the envs are run: the
returns are the same either way.
"""

from functools import partial

import torch

from shoal.faces.torchrl import AsyncEnvPool, GymEnv, ParallelEnv

NUM_ENVS = 4


def swing(td):
    """Push in the direction in which the pendulum turns."""
    return td.set("action", td["observation"][..., 2:3].sign() * 2.0)


def main() -> None:
    make = partial(GymEnv, "Pendulum-v1")

    env = ParallelEnv(NUM_ENVS, make)
    env.set_seed(0)
    steps = env.rollout(200, policy=swing)
    returns = steps["next", "reward"].sum(-2).flatten()
    print(f"{steps.batch_size.numel()} steps in step, returns {[round(r) for r in returns.tolist()]}")
    env.close()

    pool = AsyncEnvPool([make] * NUM_ENVS, backend="multiprocessing", envs_per_worker=2)
    pool.set_seed(0)
    root, sums = pool.reset(), torch.zeros(NUM_ENVS)
    pool.async_step_and_maybe_reset_send(swing(root))
    left = 200 * NUM_ENVS
    while left:
        # An env that is ready goes on at once, while the others are still at it.
        stepped, root = pool.async_step_and_maybe_reset_recv(min_get=1)
        rows = [int(i) for i in stepped["env_index"]]
        sums[rows] += stepped["next", "reward"].flatten()
        left -= len(rows)
        going = [row for row, i in enumerate(rows) if not stepped["next", "done"][row]]
        if going:
            pool.async_step_and_maybe_reset_send(swing(root[going]))
    print(f"at their own pace, returns {[round(r) for r in sums.tolist()]}")
    pool.close()
    assert torch.allclose(returns, sums, rtol=1e-3)


if __name__ == "__main__":
    main()
