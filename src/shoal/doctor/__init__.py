"""What on this machine, or about an env on it, will get in the way of a pool, and what to do about it.

diagnosis   what an examination says
machine     examinations of the machine
limits      those of what the system allows
env         examinations of an env
race        those of the engines it can run on
rows        what envs return, and where two of them part
trial       a pool of tiny envs in real worker processes, and what it took

Nothing is printed here: ``shoal doctor`` does that.
"""

from __future__ import annotations

from shoal.doctor.diagnosis import Diagnosis, Verdict
from shoal.doctor.env import examine_env
from shoal.doctor.machine import examine_machine

__all__ = ["Diagnosis", "Verdict", "examine_env", "examine_machine"]
