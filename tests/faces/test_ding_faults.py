"""A run in which envs are killed, hang and raise at random, every timestep of which is checked."""

from __future__ import annotations

import ding_fault_run


def test_every_fault_is_one_abnormal_timestep_and_all_others_are_right() -> None:
    # The same with 100,000 steps and 200 faults: python tests/support/ding_fault_run.py
    found = ding_fault_run.run(steps=2500, faults=12, num_envs=4)
    assert found.done_to.total() == found.abnormal.total() == 12
    assert found.abnormal["WorkerDied"] == found.done_to["kill"]
    assert found.abnormal["EnvTimeout"] == found.done_to["hang"]
    assert found.abnormal["EnvStepError"] == found.done_to["raise"]
    assert found.episodes > 10
