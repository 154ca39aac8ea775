"""Envs and checks for testing pools, wrappers and envs of your own.

`CountingEnv` and its relatives give rows that show where they came from, `FaultEnv` goes wrong on demand, and
`no_leftovers` fails if anything is left running or open. Two more parts are modules of their own, which nobody loads
for an env alone: `shoal.testing.conformance`, the rules for engines, and `shoal.testing.soak`.

    >>> import shoal
    >>> from shoal.testing import CountingEnv, no_leftovers, read_row
    >>> with no_leftovers(), shoal.make_pool(CountingEnv, 2, engine="serial") as pool:
    ...     rows = [read_row(obs) for obs in pool.reset(seed=1).obs]
    >>> [row.step for row in rows]
    [0, 0]
"""

from shoal.testing.envs import CountingEnv, Ending, Row, SleepyEnv, WrappedBufferEnv, read_row
from shoal.testing.faults import (
    FAULT_FAMILIES,
    Fault,
    FaultEnv,
    InjectedFault,
    Place,
    TwoArgFault,
    UnpicklableFault,
    fault_places,
    release_hangs,
)
from shoal.testing.leaks import Leftovers, leak_guard, leftovers, no_leftovers
from shoal.testing.scripted import ScriptedEnv, ScriptStep
from shoal.testing.structured import (
    CustomSpaceEnv,
    DictTupleEnv,
    GraphEnv,
    InventorySpace,
    SampleEnv,
    SequenceEnv,
    TextEnv,
)

__all__ = [
    "FAULT_FAMILIES",
    "CountingEnv",
    "CustomSpaceEnv",
    "DictTupleEnv",
    "Ending",
    "Fault",
    "FaultEnv",
    "GraphEnv",
    "InjectedFault",
    "InventorySpace",
    "Leftovers",
    "Place",
    "Row",
    "SampleEnv",
    "ScriptStep",
    "ScriptedEnv",
    "SequenceEnv",
    "SleepyEnv",
    "TextEnv",
    "TwoArgFault",
    "UnpicklableFault",
    "WrappedBufferEnv",
    "fault_places",
    "leak_guard",
    "leftovers",
    "no_leftovers",
    "read_row",
    "release_hangs",
]
