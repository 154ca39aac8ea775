"""``AtariEnv``: one Atari game, seen and played as agents are used to.

A step repeats its action for some frames and shows the last few pictures, so that motion is visible. An episode begins
after a random number of frames in which nothing is done. With ``episodic_life`` it ends with a life, and the next one
goes on in the same game:

    automatic reset by the pool    the game goes on, unless it is over or out of time
    reset that somebody asked for  a new game
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from shoal.arguments import check_count
from shoal.arrays import words
from shoal.envs.atari import STEPS
from shoal.envs.atari.console import FIRE, NOOP, Camera, Console, game_of
from shoal.errors import ArgumentError, StateError
from shoal.seeding import generator_of, give_generator
from shoal.spec import Field

_UNASKED: Any = object()  # nobody asked for the reset: it is due because an episode has ended
_SEEDS = 2**31
_RENDER_MODES = (None, "rgb_array")

Info = dict[str, Any]
Array = np.ndarray[Any, Any]


class _Shown(NamedTuple):
    """A screen. The emulator's saved state lacks it: once restored, it shows something else until the next frame.

    Attributes:
        picture: The screen as it appears in observations.
        screen: The screen in full size and colour if it may be rendered, else None.
    """

    picture: Any
    screen: Any


class AtariEnv(gym.Env[Any, Any]):
    """One game. The observation is one and the same array, which the next step overwrites; a pool hands out copies.

    Infos: ``lives``; ``reward``, unclipped; ``terminated``, 1 when the game is over and not only a life; ``ram``. With
    ``zero_discount_on_life_loss`` there is ``discount``, with ``episodic_life`` ``elapsed_step``, which counts the
    steps of a game across its lives.

    Args:
        stack_num: How many pictures make up an observation.
        frame_skip: For how many frames an action is repeated.
        noop_max: The most frames without an action at the start of an episode; at least one, unless this is 0.
        zero_discount_on_life_loss: Whether the discount of a step that costs a life is 0.
        episodic_life: Whether an episode ends with a life.
        reward_clip: Whether rewards are -1, 0 or 1.
        use_fire_reset: Whether FIRE is pressed at the start of an episode, in games that have it.
        img_height: Height of the pictures.
        img_width: Width of the pictures.
        task: The game, as ale-py calls it.
        mode: One of the game's modes; -1 for its default.
        difficulty: One of the game's difficulties; -1 for its default.
        full_action_space: Whether there are all 18 actions of the console, or only those that have an effect.
        repeat_action_probability: How likely, in each frame, the last action is played in place of the given one.
        use_inter_area_resize: Whether pixels are means of areas, or interpolated between their neighbours.
        gray_scale: Whether there is one channel per picture, or three.
        max_episode_steps: Steps after which a game is cut short.
        render_mode: ``"rgb_array"`` lets ``render`` return the screen.

    Example:
        >>> env = AtariEnv(task="pong")
        >>> env.reset(seed=1)[0].shape
        (4, 84, 84)
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}
    reset_options: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        stack_num: int = 4,
        frame_skip: int = 4,
        noop_max: int = 30,
        zero_discount_on_life_loss: bool = False,
        episodic_life: bool = False,
        reward_clip: bool = False,
        use_fire_reset: bool = True,
        img_height: int = 84,
        img_width: int = 84,
        task: str = "pong",
        mode: int = -1,
        difficulty: int = -1,
        full_action_space: bool = False,
        repeat_action_probability: float = 0.0,
        use_inter_area_resize: bool = True,
        gray_scale: bool = True,
        max_episode_steps: int = STEPS,
        render_mode: str | None = None,
    ) -> None:
        least = {"stack_num": 1, "frame_skip": 1, "noop_max": 0, "img_height": 1, "img_width": 1}
        for name, low in {**least, "max_episode_steps": 0}.items():
            check_count(name, locals()[name], low=low, may_be_none=False)
        if not 0.0 <= repeat_action_probability <= 1.0:
            raise ArgumentError(f"repeat_action_probability: expected 0 to 1, got {repeat_action_probability!r}")
        if render_mode not in _RENDER_MODES:
            raise ArgumentError(f"render_mode: expected one of {_RENDER_MODES}, got {render_mode!r}")
        game = game_of(task)
        self.render_mode = render_mode
        self._console = Console(game, mode, difficulty, float(repeat_action_probability))
        self._camera = Camera(game, img_height, img_width, is_gray=gray_scale, by_area=use_inter_area_resize)
        self._actions = game.legal if full_action_space else game.minimal
        self._presses_fire = bool(use_fire_reset) and FIRE in self._actions
        self._skip, self._noop_max, self._limit = frame_skip, noop_max, max(1, max_episode_steps)
        self._clips, self._by_lives = bool(reward_clip), bool(episodic_life)
        self._channels = 1 if gray_scale else 3
        self._stack_in(np.zeros((stack_num * self._channels, img_height, img_width), np.uint8))
        self._steps = self._lives = 0
        self._shown: _Shown | None = None
        self.observation_space = spaces.Box(0, 255, self._stack.shape, np.uint8)
        self.action_space = spaces.Discrete(len(self._actions))
        self.info_columns = tuple(_columns(zero_discount_on_life_loss, episodic_life))
        self._tells_discount = bool(zero_discount_on_life_loss)

    # ------------------------------------------------------------------ episodes

    def reset(self, *, seed: int | None = _UNASKED, options: Info | None = None) -> tuple[Any, Info]:
        """Begin an episode: without arguments where the last one ended, else in a new game."""
        is_asked = seed is not _UNASKED or options is not None
        own_seed = None if seed is _UNASKED else seed
        super().reset(seed=own_seed)
        console = self._console
        if own_seed is not None or console.ale is None:
            console.load(self._emulator_seed(own_seed))
            is_asked = True
        ale = console.ale
        is_new = is_asked or not self._by_lives or ale.game_over() or self._steps >= self._limit
        if is_new:
            console.begin()
            self._steps = 0
        is_new |= self._wait(console)
        if self._presses_fire:
            console.act(FIRE)
        if is_new or self._noop_max or self._presses_fire:
            self._shown = None
        self._shift()
        if self._shown is None:
            self._camera.shoot(ale, self._newest, pooled=False)
        else:
            self._newest[:] = self._shown.picture
        if is_new:
            self._stack.reshape(-1, *self._newest.shape)[:-1] = self._newest
        self._lives = ale.lives()
        return self._stack, self._info(0.0, 1.0)

    def _wait(self, console: Console) -> bool:
        """Let some frames pass; True if the game ended meanwhile and was begun again."""
        if self._noop_max == 0:
            return False
        has_restarted = False
        for _ in range(int(self.np_random.integers(1, self._noop_max + 1)) - self._presses_fire):
            console.act(NOOP)
            if console.ale.game_over():
                console.begin()
                self._steps, has_restarted = 0, True
        return has_restarted

    def _emulator_seed(self, seed: int | None) -> int:
        if seed is None:
            return int(self.np_random.integers(_SEEDS))
        return int(np.random.SeedSequence(seed).generate_state(1)[0]) % _SEEDS

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Play an action for some frames."""
        ale, act = self._console.ale, self._console.act
        self._shown, pressed = None, self._actions[action]
        earned, left, is_over = 0, self._skip, False
        while left and not is_over:
            earned += act(pressed)
            left -= 1
            is_over = ale.game_over()
            if left == 1 and not is_over:
                self._camera.keep(ale)
        self._shift()
        # If the game ended before the last frame, there are no two consecutive screens.
        self._camera.shoot(ale, self._newest, pooled=left == 0 and self._skip > 1)
        self._steps += 1
        lives = ale.lives()
        ends = is_over or (self._by_lives and 0 < lives < self._lives)
        is_cut = self._steps >= self._limit
        reward = float(earned)
        info = self._info(reward, 0.0 if ends or is_cut or lives != self._lives else 1.0)
        self._lives = info["lives"]
        if self._clips:
            reward = float((earned > 0) - (earned < 0))
        return self._stack, reward, ends, is_cut, info

    def _stack_in(self, stack: Array) -> None:
        # In one go, so that an interrupt does not leave the three in two arrays.
        self._stack, self._newest, self._bytes = stack, stack[-self._channels :], words(stack.reshape(-1))

    def _shift(self) -> None:
        """Make room for a new picture, as bytes, because numpy would copy the overlap twice."""
        size = self._newest.size
        self._bytes[:-size] = self._bytes[size:]

    def _look(self) -> _Shown:
        """What the screen shows."""
        if self._shown is not None:
            return self._shown
        ale = self._console.ale
        picture = np.empty_like(self._newest)
        self._camera.shoot(ale, picture, pooled=False)
        return _Shown(picture, None if self.render_mode is None else ale.getScreenRGB())

    def _info(self, reward: float, discount: float) -> Info:
        console = self._console
        info: Info = {
            "lives": console.ale.lives(),
            "reward": reward,
            "terminated": int(console.ale.game_over()),
            "ram": console.read_ram(),
        }
        if self._tells_discount:
            info["discount"] = discount
        if self._by_lives:
            info["elapsed_step"] = self._steps
        return info

    # ------------------------------------------------------------------ snapshots

    def snapshot(self) -> dict[str, Any]:
        """The whole state of the game, and of the env around it.

        Raises:
            StateError: If the game has not begun.
        """
        if self._console.ale is None:
            raise StateError("AtariEnv: there is nothing to keep before the first reset")
        return {
            "console": self._console.save(),
            "shown": tuple(self._look()),
            "stack": self._stack.copy(),
            "steps": self._steps,
            "lives": self._lives,
            "generator": generator_of(self),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where this env, or another with the same options, was."""
        self._console.load_saved(state["console"])
        self._stack[:] = state["stack"]
        picture, screen = state["shown"]
        self._shown = _Shown(picture.copy(), screen)
        self._steps, self._lives = state["steps"], state["lives"]
        give_generator(self, state["generator"])

    # ------------------------------------------------------------------ outside episodes

    def render(self) -> Any:
        """The screen in full size and colour, ``uint8 [210, 160, 3]``."""
        if self.render_mode is None:
            raise ArgumentError("AtariEnv: to render, make it with render_mode='rgb_array'")
        if self._console.ale is None:
            self.reset()
        screen = self._console.ale.getScreenRGB() if self._shown is None else self._shown.screen
        if screen is None:
            raise StateError(
                "AtariEnv: the snapshot was taken without render_mode: nothing to see before the next step"
            )
        return screen

    def move_observation(self, old: Any, new: Array) -> bool:
        """Keep the observation in ``new``, if it is in ``old`` so far: a pool has the env write to the pool's own rows.

        Returns:
            Whether it has moved.
        """
        if old is not self._stack:
            return False
        new[:] = old
        self._stack_in(new)
        return True

    def close(self) -> None:
        """Release the emulator, and memory that is not the env's own."""
        self._console.ale = None
        self._stack_in(self._stack.copy())


def _columns(with_discount: bool, with_steps: bool) -> list[Field]:
    columns = [
        Field("lives", np.dtype(np.int32), ()),
        Field("reward", np.dtype(np.float32), ()),
        Field("terminated", np.dtype(np.int32), ()),
        Field("ram", np.dtype(np.uint8), (128,)),
    ]
    if with_discount:
        columns.append(Field("discount", np.dtype(np.float32), ()))
    if with_steps:
        columns.append(Field("elapsed_step", np.dtype(np.int32), ()))
    return columns
