"""Looking at envs in a worker process, for envs that must not be made in this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.adapters.byte_rows import ByteRow
from shoal.adapters.tensordict_env import APPLY, Crossing
from shoal.build import make_pool
from shoal.faces.torchrl.batched.slots import MakeSlot, patience_s, start_method_of
from shoal.faces.torchrl.metadata import EnvMetaData

if TYPE_CHECKING:
    from shoal.faces.torchrl.batched.members import Members


def look_in_worker(members: Members, start_method: str | None) -> list[EnvMetaData]:
    """What each env is, from throw-away ones in a worker process."""
    nothing = ByteRow([])
    crossing = Crossing(nothing, nothing, nothing.size, nothing.size)
    kinds = members.kinds()
    factories = [MakeSlot(members.makers[i], members.kwargs[i], crossing, 1) for i in sorted(set(kinds))]
    with make_pool(
        factories,
        engine="process",
        num_workers=1,
        autoreset="disabled",
        start_method=start_method_of(start_method),
        construct_timeout=patience_s(),
        reset_timeout=patience_s(),
        name="EnvBase",
    ) as pool:
        told = dict(zip(sorted(set(kinds)), pool.ask(APPLY, (EnvMetaData.metadata_from_env,), {}), strict=True))
    return [told[kind] for kind in kinds]
