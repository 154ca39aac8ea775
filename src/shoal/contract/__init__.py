"""Does an env keep its contract? Every rule in turn, with findings that its author can act on.

    walk         one env, many steps: what ``reset`` and ``step`` return, and what they do to things not theirs
    replay       several envs, a few short episodes: seeds, and instances that should not affect each other
    belongings   what surrounds the env: spaces, render mode, ``close``, the way to a worker process

``check_env`` is for tests, ``examine`` for callers who also want to know which rules were checked. Nothing is
printed, and nothing that the env raises gets out of here: it becomes a finding.
"""

from __future__ import annotations

from shoal.contract.examine import Report, check_env, examine
from shoal.contract.findings import RULES, Finding

__all__ = ["RULES", "Finding", "Report", "check_env", "examine"]
