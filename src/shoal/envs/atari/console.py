"""A game console: ale-py's emulator with a game in it, and its screen as pictures.

Loading a game takes a tenth of a second, and only then does a seed take effect. So a game is loaded when its first seed
is known, and what can be known about it without a seed is kept for all consoles of the process.
"""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.engines.kernel.installed import has_numba
from shoal.envs.atari import MISSING
from shoal.envs.atari.picture import UNKNOWN, Array, PlainShrinker, taps_of
from shoal.errors import ArgumentError, BackendUnavailable

try:
    import ale_py
    from ale_py import roms
except ImportError as error:
    raise BackendUnavailable(MISSING) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.envs.atari.compiled import CompiledShrinker

NOOP, FIRE = ale_py.Action.NOOP, ale_py.Action.FIRE
_RGB = 3


class Game(NamedTuple):
    """What there is to know about a game.

    Attributes:
        rom: The file.
        minimal: Actions that have an effect in it.
        legal: All actions of the console.
        modes: Modes that it can be played in.
        difficulties: Difficulties that it can be played at.
        lines: Lines of the screen.
        columns: Columns of the screen.
    """

    rom: str
    minimal: tuple[Any, ...]
    legal: tuple[Any, ...]
    modes: tuple[int, ...]
    difficulties: tuple[int, ...]
    lines: int
    columns: int


@cache
def game_of(task: str) -> Game:
    """The game with a name such as ``"ms_pacman"``.

    Raises:
        ArgumentError: If ale-py has no game of that name.
    """
    known = roms.get_all_rom_ids()
    if task not in known:
        raise ArgumentError(f"task: ale-py has no game {task!r}; it has {', '.join(sorted(known))}")
    rom = str(roms.get_rom_path(task))
    ale = _emulator(rom, 0)
    lines, columns = ale.getScreenDims()
    return Game(
        rom,
        tuple(ale.getMinimalActionSet()),
        tuple(ale.getLegalActionSet()),
        tuple(ale.getAvailableModes()),
        tuple(ale.getAvailableDifficulties()),
        lines,
        columns,
    )


def _emulator(rom: str, seed: int) -> Any:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", seed)
    ale.loadROM(rom)
    return ale


class Console:
    """One console.

    Actions that are repeated at random are repeated here: the emulator could do so too, but does not say which action
    it would repeat, so that could not be restored.

    Attributes:
        ale: ale-py's emulator; None until a game is loaded.
        act: Plays an action for one frame and returns the reward.
        ram: The console's memory, as of the last ``read_ram``.
    """

    def __init__(self, game: Game, mode: int, difficulty: int, repeat_action_probability: float) -> None:
        self.game = game
        self._repeats = repeat_action_probability
        self._mode = _chosen("mode", mode, game.modes)
        self._difficulty = _chosen("difficulty", difficulty, game.difficulties)
        self.ale: Any = None
        self.act: Callable[[Any], int] = self.press
        self._held = NOOP
        self._chance = np.random.default_rng(0)
        self.ram = np.zeros(128, np.uint8)

    def load(self, seed: int) -> None:
        """Load the game afresh; all its randomness comes from this seed."""
        self.ale = _emulator(self.game.rom, seed)
        self.act = self.press if self._repeats else self.ale.act
        self._chance = np.random.default_rng(seed)
        if self._mode is not None:
            self.ale.setMode(self._mode)
        if self._difficulty is not None:
            self.ale.setDifficulty(self._difficulty)

    def begin(self) -> None:
        """Start the game from its beginning."""
        self.ale.reset_game()
        self._held = NOOP

    def press(self, action: Any) -> int:
        """Play an action for one frame, or at random the last one again; returns the reward."""
        if self._chance.random() >= self._repeats:
            self._held = action
        return int(self.ale.act(self._held))

    def save(self) -> dict[str, Any]:
        """The whole state of the console, except for what it shows."""
        return {
            "game": Path(self.game.rom).name,
            "emulator": self.ale.cloneState(include_rng=True).serialize(),
            "held": self._held.value,
            "chance": self._chance.bit_generator.state,
        }

    def load_saved(self, saved: dict[str, Any]) -> None:
        """Take over the state of a console with the same game.

        Raises:
            ArgumentError: If that console had another game.
        """
        game = Path(self.game.rom).name
        if saved["game"] != game:
            raise ArgumentError(f"restore: this is {game}, and the state that of a console with {saved['game']}")
        if self.ale is None:
            self.load(0)
        self.ale.restoreState(ale_py.ALEState(saved["emulator"]))
        self._held = ale_py.Action(saved["held"])
        self._chance.bit_generator.state = saved["chance"]

    def read_ram(self) -> Array:
        """The console's current memory, in an array that the next call overwrites."""
        self.ale.getRAM(self.ram)
        return self.ram


def _chosen(name: str, value: int, choices: tuple[int, ...]) -> int | None:
    if value == -1:
        return None
    if value not in choices:
        raise ArgumentError(f"{name}: the game has {list(choices)}, and -1 for its own choice; got {value!r}")
    return int(value)


class _Screens(threading.local):
    """The last two screens of the console that this thread works on; those of all would not fit into a CPU cache."""

    def __init__(self) -> None:
        self.of: dict[tuple[int, int], tuple[Array, Array]] = {}


_screens = _Screens()


@cache
def _shades_of(rom: str, channels: int) -> Array:
    """How bright the colours of a game are, as far as they have been seen; ale-py says so only for whole screens."""
    return np.full((channels, 256), UNKNOWN, np.uint16)


@cache
def _shrinker_class() -> type[PlainShrinker] | type[CompiledShrinker]:
    if not has_numba():
        return PlainShrinker
    from shoal.envs.atari.compiled import CompiledShrinker

    return CompiledShrinker


class Camera:
    """Takes pictures of the screen of a console.

    Args:
        game: The game, for the size of the screen and its colours.
        height: The height of pictures.
        width: The width of pictures.
        is_gray: Whether there is one channel, or three for red, green and blue.
        by_area: Whether a pixel is the mean of the area that it covers, or interpolated between its neighbours.
    """

    def __init__(self, game: Game, height: int, width: int, *, is_gray: bool, by_area: bool) -> None:
        self._is_gray = is_gray
        self._size = (game.lines, game.columns)
        self._shades = _shades_of(game.rom, 1 if is_gray else _RGB)
        across, down = taps_of(self._size, (height, width), by_area=by_area)
        self._shrinker = _shrinker_class()(game.lines, game.columns, across, down)

    def keep(self, ale: Any) -> None:
        """Keep the current screen, for a picture that this thread takes before it turns to another console."""
        kept, _ = self._buffers()
        ale.getScreen(kept)
        if not self._shrinker.knows(kept, self._shades[0]):
            self._learn(ale, kept)

    def shoot(self, ale: Any, out: Array, *, pooled: bool) -> None:
        """Write a picture of the screen, or of it and the kept one, to ``out [channels, height, width]``."""
        kept, last = self._buffers()
        ale.getScreen(last)
        under = kept if pooled else last
        shrink = self._shrinker.shrink
        for shades, channel in zip(self._shades, out, strict=True):
            if not shrink(last, under, shades, channel):
                self._learn(ale, last)
                shrink(last, under, shades, channel)

    def _learn(self, ale: Any, screen: Array) -> None:
        """Learn the colours of the screen that is shown now."""
        seen = ale.getScreenGrayscale()[None] if self._is_gray else np.moveaxis(ale.getScreenRGB(), -1, 0)
        for shades, channel in zip(self._shades, seen, strict=True):
            shades[screen] = channel

    def _buffers(self) -> tuple[Array, Array]:
        found = _screens.of.get(self._size)
        if found is None:
            found = _screens.of[self._size] = (np.zeros(self._size, np.uint8), np.zeros(self._size, np.uint8))
        return found
