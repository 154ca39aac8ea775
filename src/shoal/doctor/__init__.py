"""What will get in the way of a pool on this machine, or of a particular env on it, and what to do about it.

diagnosis   the result of an examination
machine     examinations of the machine
limits      examinations of what the system allows
env         examinations of an env
rehearsal   a first try of an env in a worker
race        examinations of the engines that an env can run on
rows        what envs return, and where two of them diverge
trial       a pool of tiny envs in real worker processes, and what it costs

Nothing is printed here: ``shoal doctor`` does that.
"""

from __future__ import annotations

from shoal.doctor.diagnosis import Diagnosis, Verdict
from shoal.doctor.env import examine_env
from shoal.doctor.machine import examine_machine

__all__ = ["Diagnosis", "Verdict", "examine_env", "examine_machine"]
