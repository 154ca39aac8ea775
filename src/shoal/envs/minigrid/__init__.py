"""The grid worlds of minigrid, MiniGrid and BabyAI, with EnvPool's observations, which are all arrays.

The table says which ids there are and how many steps their episodes may take; minigrid, which has the envs, is imported
only to make one. Gymnasium's door (``make_vec``) opens minigrid's own env under the same id, with the mission as text.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

import gymnasium as gym

from shoal.envs.minigrid.missions import decode_mission
from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MISSING", "TASKS", "decode_mission", "is_minigrids", "register_with_gymnasium"]

MISSING = "MiniGrid and BabyAI need minigrid: pip install 'shoal[minigrid]'"
_FAMILIES = ("MiniGrid-", "BabyAI-")

_GRIDS = """
    Empty-5x5-v0:100 Empty-6x6-v0:144 Empty-8x8-v0:256 Empty-16x16-v0:1024 Empty-Random-5x5-v0:100
    Empty-Random-6x6-v0:144 DoorKey-5x5-v0:250 DoorKey-6x6-v0:360 DoorKey-8x8-v0:640 DoorKey-16x16-v0:2560
    DistShift1-v0:252 DistShift2-v0:252 LavaCrossingS9N1-v0:324 LavaCrossingS9N2-v0:324 LavaCrossingS9N3-v0:324
    LavaCrossingS11N5-v0:484 SimpleCrossingS9N1-v0:324 SimpleCrossingS9N2-v0:324 SimpleCrossingS9N3-v0:324
    SimpleCrossingS11N5-v0:484 LavaGapS5-v0:100 LavaGapS6-v0:144 LavaGapS7-v0:196 Dynamic-Obstacles-5x5-v0:100
    Dynamic-Obstacles-Random-5x5-v0:100 Dynamic-Obstacles-6x6-v0:144 Dynamic-Obstacles-Random-6x6-v0:144
    Dynamic-Obstacles-8x8-v0:256 Dynamic-Obstacles-16x16-v0:1024 Fetch-5x5-N2-v0:125 Fetch-6x6-N2-v0:180
    Fetch-8x8-N3-v0:320 FourRooms-v0:100 GoToDoor-5x5-v0:100 GoToDoor-6x6-v0:144 GoToDoor-8x8-v0:256
    GoToObject-6x6-N2-v0:180 GoToObject-8x8-N2-v0:320 KeyCorridorS3R1-v0:270 KeyCorridorS3R2-v0:270
    KeyCorridorS3R3-v0:270 KeyCorridorS4R3-v0:480 KeyCorridorS5R3-v0:750 KeyCorridorS6R3-v0:1080 LockedRoom-v0:190
    MemoryS17Random-v0:1445 MemoryS13Random-v0:845 MemoryS13-v0:845 MemoryS11-v0:605 MemoryS9-v0:405 MemoryS7-v0:245
    MultiRoom-N2-S4-v0:40 MultiRoom-N4-S5-v0:120 MultiRoom-N6-v0:120 ObstructedMaze-1Dl-v0:288
    ObstructedMaze-1Dlh-v0:288 ObstructedMaze-1Dlhb-v0:288 ObstructedMaze-2Dl-v0:576 ObstructedMaze-2Dlh-v0:576
    ObstructedMaze-2Dlhb-v0:576 ObstructedMaze-1Q-v0:720 ObstructedMaze-2Q-v0:1584 ObstructedMaze-Full-v0:3600
    ObstructedMaze-2Dlhb-v1:576 ObstructedMaze-1Q-v1:720 ObstructedMaze-2Q-v1:1584 ObstructedMaze-Full-v1:3600
    Playground-v0:100 PutNear-6x6-N2-v0:30 PutNear-8x8-N3-v0:40 RedBlueDoors-6x6-v0:720 RedBlueDoors-8x8-v0:1280
    Unlock-v0:288 UnlockPickup-v0:288 BlockedUnlockPickup-v0:576 WFC-MazeSimple-v0:500 WFC-DungeonMazeScaled-v0:500
    WFC-RoomsFabric-v0:500 WFC-ObstaclesBlackdots-v0:500 WFC-ObstaclesAngular-v0:500 WFC-ObstaclesHogs3-v0:500
"""
# The time limit of these depends on the mission of the episode. All but one are at version 0.
_LEVELS = """
    ActionObjDoor BlockedUnlockPickup BossLevel BossLevelNoUnlock FindObjS5 FindObjS6 FindObjS7 GoTo GoToOpen
    GoToObjMaze GoToObjMazeOpen GoToObjMazeS4 GoToObjMazeS4R2 GoToObjMazeS5 GoToObjMazeS6 GoToObjMazeS7 GoToDoor
    GoToImpUnlock GoToLocal GoToLocalS5N2 GoToLocalS6N2 GoToLocalS6N3 GoToLocalS6N4 GoToLocalS7N4 GoToLocalS7N5
    GoToLocalS8N2 GoToLocalS8N3 GoToLocalS8N4 GoToLocalS8N5 GoToLocalS8N6 GoToLocalS8N7 GoToObj GoToObjS4
    GoToObjS6-v1 GoToObjDoor GoToRedBall GoToRedBallGrey GoToRedBallNoDists GoToRedBlueBall GoToSeq GoToSeqS5R2
    KeyCorridor KeyCorridorS3R1 KeyCorridorS3R2 KeyCorridorS3R3 KeyCorridorS4R3 KeyCorridorS5R3 KeyCorridorS6R3 KeyInBox
    MiniBossLevel MoveTwoAcrossS5N2 MoveTwoAcrossS8N9 OneRoomS8 OneRoomS12 OneRoomS16 OneRoomS20 Open OpenDoor
    OpenDoorColor OpenDoorDebug OpenDoorLoc OpenDoorsOrderN2 OpenDoorsOrderN2Debug OpenDoorsOrderN4
    OpenDoorsOrderN4Debug OpenRedBlueDoors OpenRedBlueDoorsDebug OpenRedDoor OpenTwoDoors Pickup PickupAbove
    PickupDist PickupDistDebug PickupLoc PutNextLocal PutNextLocalS5N3 PutNextLocalS6N4 PutNextS4N1 PutNextS5N1
    PutNextS5N2 PutNextS5N2Carrying PutNextS6N3 PutNextS6N3Carrying PutNextS7N4 PutNextS7N4Carrying Synth SynthLoc
    SynthS5R2 SynthSeq UnblockPickup Unlock UnlockLocal UnlockLocalDist UnlockPickup UnlockPickupDist UnlockToUnlock
"""


def _tasks() -> Iterator[tuple[str, int | None]]:
    for grid in _GRIDS.split():
        name, _, limit = grid.partition(":")
        yield f"MiniGrid-{name}", int(limit)
    for level in _LEVELS.split():
        yield f"BabyAI-{level}" if "-v" in level else f"BabyAI-{level}-v0", None


TASKS: dict[str, int | None] = dict(_tasks())  # EnvPool's ids, with the time limit of those that have a fixed one


def is_minigrids(task_id: str) -> bool:
    """Whether the id is one of EnvPool's ids for minigrid, and nobody has registered another env under it."""
    if task_id not in TASKS:
        return False
    registered = gym.registry.get(task_id)
    return registered is None or str(registered.entry_point).startswith("minigrid.")


def register_with_gymnasium(task_id: str) -> None:
    """Make minigrid's ids known to Gymnasium, if this is one of them: importing minigrid registers them.

    Raises:
        BackendUnavailable: If minigrid is not installed.
    """
    if not task_id.startswith(_FAMILIES) or task_id in gym.registry:
        return
    if importlib.util.find_spec("minigrid") is None:
        raise BackendUnavailable(f"{task_id}: {MISSING}")
    importlib.import_module("minigrid")
