"""What EnvPool's ids look like, family by family, so that they can be recognised without the package."""

from __future__ import annotations

import re

from shoal.envs.envpool import INSTALL

_FAMILIES = {
    "Box2D": "(CarRacing|BipedalWalker|LunarLander).*",
    "dm_control": (
        "(Acrobot|BallInCup|Cartpole|Cheetah|Dog|Finger|Fish|Hopper|Humanoid|HumanoidCMU|LQR|Lqr|Manipulator|Pendulum|"
        "PointMass|Quadruped|Reacher|Stacker|Swimmer|Walker)[A-Z][A-Za-z0-9]+"
    ),
    "gfootball": "gfootball/.*",
    "Gymnasium-Robotics": "(Fetch|HandReach|HandManipulate|AdroitHand|AntMaze_|PointMaze_|FrankaKitchen).*",
    "highway-env": (
        "(?i:highway|exit|intersection|lane-?keeping|merge|parking|racetrack|roundabout|two-?way|u-?turn).*"
    ),
    "Jumanji": (
        "(Jumanji/.*|BinPack|CVRP|Cleaner|Connector|FlatPack|Game2048|GraphColoring|JobShop|Knapsack|"
        "LevelBasedForaging|MMST|Maze|Minesweeper|MultiCVRP|PacMan|RobotWarehouse|RubiksCube.*|SearchAndRescue|"
        "SlidingTilePuzzle|Snake|Sokoban|Sudoku.*|TSP|Tetris)"
    ),
    "MetaWorld": "MetaWorld/.*",
    "MiniGrid": "(MiniGrid|BabyAI)-.*",
    "MuJoCo Playground": (
        "(MuJoCoPlayground/.*|(Aero|Aloha|Apollo|Barkour|Berkeley|G1|Go1|H1|Leap|Op3|Panda|Spot|T1)[A-Z].*)"
    ),
    "MyoSuite": "(MyoSuite/.*|(myo|Myo|motor)[A-Z].*)",
    "PGX": (
        "((Chinese)?Go[0-9]+x[0-9]+|TicTacToe|ConnectFour|Hex|Othello|KuhnPoker|LeducHoldem|Play2048|(Animal)?Shogi|"
        "Backgammon|(Gardner)?Chess|SparrowMahjong)"
    ),
    "Procgen": (
        "(Bigfish|Bossfight|Caveflyer|Chaser|Climber|Coinrun|Dodgeball|Fruitbot|Heist|Jumper|Leaper|Maze|Miner|Ninja|"
        "Plunder|Starpilot)(Easy|Hard|Extreme|Memory|Exploration)"
    ),
    "ViZDoom": (
        "(D[1-4][A-Z].*|Basic.*|Cig|DeadlyCorridor|Deathmatch|DefendThe.*|HealthGathering.*|MultiDuel|MyWayHome|"
        "PredictPosition|RocketBasic|SimplerBasic|TakeCover|VizdoomCustom)"
    ),
}


def family_of(task_id: str) -> str | None:
    """The EnvPool family that has ids like this one.

    Example:
        >>> family_of("CoinrunEasy-v0"), family_of("Nothing-v0")
        ('Procgen', None)
    """
    name, version = re.fullmatch(r"(.*?)(-v\d+)?", task_id, re.DOTALL).groups()  # type: ignore[union-attr]
    if version is None:
        return None
    return next((family for family, pattern in _FAMILIES.items() if re.fullmatch(pattern, name)), None)


def hint(task_id: str) -> str:
    """What to add to the message that there is no such id; empty if EnvPool is no help."""
    family = family_of(task_id)
    return "" if family is None else f"; EnvPool has such {family} tasks: engine='envpool' runs them ({INSTALL})"
