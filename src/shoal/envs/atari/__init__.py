"""Atari games on ale-py, under EnvPool's ids (``Pong-v5``) and with its options.

The table says which class runs under which id; it only names the class, because ale-py is needed only to make one.
Gymnasium's ids (``ALE/Pong-v5``) mean Gymnasium's own envs.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from typing import TYPE_CHECKING

from shoal.envs import ShippedTask
from shoal.errors import BackendUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["GYMNASIUMS", "MISSING", "TASKS", "has_ale", "register_with_gymnasium"]

MISSING = "Atari games need ale-py: pip install 'shoal[atari]'"
GYMNASIUMS = "ALE/"  # the prefix of Gymnasium's ids
STEPS = 27_000  # 108,000 frames: half an hour of play

_GAMES = """
    Adventure AirRaid Alien Amidar Assault Asterix Asteroids Atlantis Atlantis2 Backgammon BankHeist BasicMath
    BattleZone BeamRider Berzerk Blackjack Bowling Boxing Breakout Carnival Casino Centipede ChopperCommand
    CrazyClimber Crossbow Darkchambers Defender DemonAttack DonkeyKong DoubleDunk Earthworld ElevatorAction Enduro
    Entombed Et FishingDerby FlagCapture Freeway Frogger Frostbite Galaxian Gopher Gravitar Hangman HauntedHouse Hero
    HumanCannonball IceHockey Jamesbond JourneyEscape Kaboom Kangaroo KeystoneKapers KingKong Klax Koolaid Krull
    KungFuMaster LaserGates LostLuggage MarioBros MiniatureGolf MontezumaRevenge MrDo MsPacman NameThisGame Othello
    Pacman Phoenix Pitfall Pitfall2 Pong Pooyan PrivateEye Qbert Riverraid RoadRunner Robotank Seaquest SirLancelot
    Skiing Solaris SpaceInvaders SpaceWar StarGunner Superman Surround Tennis Tetris TicTacToe3d TimePilot Trondead
    Turmoil Tutankham UpNDown Venture VideoCheckers VideoChess VideoCube VideoPinball WizardOfWor WordZapper
    YarsRevenge Zaxxon
"""


def _rom_of(game: str) -> str:
    """``"MsPacman"`` as ``"ms_pacman"``, which is what ale-py calls its files."""
    return re.sub(r"(?<=[a-z])(?=[A-Z]|3)", "_", re.sub(r"(?<=N)(?=D)", "_", game)).lower()


def _tasks() -> Iterator[tuple[str, ShippedTask]]:
    for game in _GAMES.split():
        yield f"{game}-v5", ShippedTask("shoal.envs.atari.env:AtariEnv", {"task": _rom_of(game)}, STEPS)


TASKS: dict[str, ShippedTask] = dict(_tasks())


@cache
def has_ale() -> bool:
    """Whether ale-py is installed."""
    return importlib.util.find_spec("ale_py") is not None


def register_with_gymnasium(task_id: str) -> None:
    """Make Gymnasium's Atari ids known to it, if this is one of them: it does not import ale-py on its own.

    Raises:
        BackendUnavailable: If ale-py is not installed.
    """
    if not task_id.startswith(GYMNASIUMS):
        return
    if not has_ale():
        raise BackendUnavailable(f"{task_id}: {MISSING}")
    importlib.import_module("ale_py")
