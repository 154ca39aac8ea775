"""Small deterministic envs whose every row says where it came from.

A pool moves rows between envs and a trainer. The ways it can go wrong are few: a row is lost, repeated, torn (half of
it from another step) or handed to the wrong env. `CountingEnv` makes each of these visible in the numbers themselves:

    obs    [serial | tag | episode | step | total | action | draw | serial, serial, ...]
             ^                                                       ^
             both ends carry the same number, unique to this row: a torn row has two different ends
    reward total

`read_row` takes an observation apart again and refuses a torn one. `SleepyEnv` and `WrappedBufferEnv` add one property
each and otherwise give the same rows as a `CountingEnv` with the same seed. `shoal.testing.scripted` has an env that
plays back a given list, `shoal.testing.structured` the envs with nested and unusual spaces.

Every env here follows the gymnasium contract strictly: `step` before `reset`, or after an episode has ended, raises
`gymnasium.error.ResetNeeded`, so that a pool which forgets to reset does not go unnoticed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

Ending: TypeAlias = Literal["random", "terminated", "truncated", "both"]

MIN_ROW_SIZE = 8
MIN_ITEM_BYTES = 4
NO_ACTION = -1
_LONGEST_RANDOM_EPISODE = 9
_FLAGS: dict[str, tuple[bool, bool]] = {
    "terminated": (True, False),
    "truncated": (False, True),
    "both": (True, True),
}


class Row(NamedTuple):
    """What one `CountingEnv` observation says.

    Attributes:
        tag: The env's `tag`.
        episode: Number of the episode since the last seeding, from 0.
        step: Steps taken in this episode; 0 in the row of a reset.
        total: Steps taken since the last seeding.
        action: Sum of the action that led here; -1 in the row of a reset.
        draw: A number below 1000 drawn from the env's generator at the reset; tells two seeds apart.
    """

    tag: int
    episode: int
    step: int
    total: int
    action: float
    draw: int


def read_row(obs: NDArray[Any]) -> Row:
    """Take one `CountingEnv` observation apart.

    Args:
        obs: One env's observation, in the shape the env gave it.

    Returns:
        The fields of the row.

    Raises:
        AssertionError: The row is torn: it mixes elements of different rows.
    """
    flat = np.asarray(obs).ravel()
    if flat.size < MIN_ROW_SIZE:
        raise AssertionError(f"a row has at least {MIN_ROW_SIZE} elements, got {flat.size}")
    tag, episode, step, total = (int(value) for value in flat[1:5])
    row = Row(tag, episode, step, total, float(flat[5]), int(flat[6]))
    seals = np.append(flat[7:], flat[0])
    if not (seals == row.total + row.episode).all():
        raise AssertionError(f"torn row: {row} should carry serial {row.total + row.episode}, has {np.unique(seals)}")
    return row


class CountingEnv(gymnasium.Env["NDArray[Any]", Any]):
    """An env that counts, so that any lost, repeated, torn or misdelivered row shows.

    Observations are laid out as in the module's docstring; `read_row` decodes them. The reward is the total number of
    steps. The length and the kind of ending of each episode follow from the seed and the episode's number. A reset
    with a seed starts all counts again, so equal seeds give equal runs; a reset without one goes on counting.

    Args:
        tag: Number written into every row, to tell envs apart.
        episode_length: Steps in every episode, or None for a random 1 to 9.
        ending: How episodes end; "random" draws one of the other three for each episode.
        obs_shape: Shape of the observation, at least 8 elements in all; a larger one makes torn rows likelier.
        dtype: Type of the observation, a float or a signed integer of at least 32 bits. Counts are exact up to 2**24 in
            float32.
        action_space: Any space whose actions can be summed as numbers. The default is `Discrete(5)`.
        infos: Whether infos carry `{"t": step, "episode": episode}`; otherwise they are empty.
        render_mode: None or "rgb_array", which gives a 4x4 picture filled with the step number modulo 256.

    Attributes:
        is_closed: Whether `close` was called.
        last_options: The options given to the last reset.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (gymnasium's type)

    def __init__(
        self,
        *,
        tag: int = 0,
        episode_length: int | None = None,
        ending: Ending = "random",
        obs_shape: int | tuple[int, ...] = MIN_ROW_SIZE,
        dtype: DTypeLike = np.float64,
        action_space: spaces.Space[Any] | None = None,
        infos: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.tag = tag
        self.episode_length = episode_length
        self.ending = ending
        self.infos = infos
        self.render_mode = render_mode
        self.observation_space: spaces.Space[Any] = _row_space(obs_shape, np.dtype(dtype))
        self.action_space: spaces.Space[Any] = spaces.Discrete(5) if action_space is None else action_space
        self.is_closed = False
        self.last_options: dict[str, Any] | None = None
        self._row_layout = _row_space(obs_shape, np.dtype(dtype))
        self._episode = -1
        self._step = self._total = self._draw = self._length = 0
        self._flags = (False, False)
        self._has_ended = True
        if ending not in get_args(Ending):
            raise ValueError(f"ending must be one of {get_args(Ending)}, got {ending!r}")
        if episode_length is not None and episode_length < 1:
            raise ValueError(f"episode_length must be at least 1, got {episode_length}")

    @property
    def total_steps(self) -> int:
        """Steps taken since the last seeding."""
        return self._total

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start the next episode or, with a seed, the first one again."""
        super().reset(seed=seed)
        if seed is not None:
            self._episode, self._total = -1, 0
        self.last_options = options
        self._episode += 1
        self._step = 0
        self._has_ended = False
        # All three are drawn whatever the settings are, so that settings never shift the stream.
        highs = (_LONGEST_RANDOM_EPISODE + 1, len(_FLAGS), 1000)
        length, ending, self._draw = (int(number) for number in self.np_random.integers((1, 0, 0), highs))
        self._length = self.episode_length or length
        self._flags = list(_FLAGS.values())[ending] if self.ending == "random" else _FLAGS[self.ending]
        return self._observe(NO_ACTION), self._info()

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Count one step.

        Raises:
            ResetNeeded: There is no episode under way.
        """
        if self._has_ended:
            raise ResetNeeded(f"CountingEnv {self.tag}: no episode is under way, call reset first")
        self._step += 1
        self._total += 1
        self._has_ended = self._step >= self._length
        terminated, truncated = self._flags if self._has_ended else (False, False)
        obs = self._observe(float(np.sum(action, dtype=np.float64)))
        return obs, float(self._total), terminated, truncated, self._info()

    def render(self) -> Any:
        """A 4x4 picture filled with the step number, or None without a render mode."""
        return None if self.render_mode is None else np.full((4, 4, 3), self._step % 256, dtype=np.uint8)

    def close(self) -> None:
        """Note that the env was closed."""
        self.is_closed = True

    def _observe(self, action: float) -> NDArray[Any]:
        return self._write_row(np.empty(self._row_layout.shape, dtype=self._row_layout.dtype), action)

    def _write_row(self, out: NDArray[Any], action: float) -> NDArray[Any]:
        serial = self._total + self._episode
        flat = out.reshape(-1)
        flat[:7] = (serial, self.tag, self._episode, self._step, self._total, action, self._draw)
        flat[7:] = serial
        return out

    def _info(self) -> dict[str, Any]:
        return {"t": self._step, "episode": self._episode} if self.infos else {}


class SleepyEnv(CountingEnv):
    """A `CountingEnv` whose steps take a random, seeded, log-normally distributed time.

    The times come from a child of the env's generator: the rows are those of a `CountingEnv` with the same seed.

    Args:
        mean_s: Mean time of a step in seconds.
        sigma: Spread of the time's logarithm; 0 makes every step take `mean_s`.
        **counting: Settings of `CountingEnv`.
    """

    def __init__(self, mean_s: float = 0.001, sigma: float = 0.5, **counting: Any) -> None:
        super().__init__(**counting)
        self.mean_s = mean_s
        self.sigma = sigma
        self._clock_rng: np.random.Generator | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start the next episode; with a seed, the sleeping times start again too."""
        result = super().reset(seed=seed, options=options)
        if seed is not None or self._clock_rng is None:
            self._clock_rng = self.np_random.spawn(1)[0]
        return result

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """Sleep, then count one step."""
        if self._clock_rng is not None:
            # The mean of a log-normal variable is exp(mu + sigma**2 / 2): this mu makes the factor's mean 1.
            time.sleep(self.mean_s * self._clock_rng.lognormal(-(self.sigma**2) / 2, self.sigma))
        return super().step(action)


class WrappedBufferEnv(CountingEnv):
    """A `CountingEnv` that returns the same array object every time and overwrites it at the next call.

    Many simulators do this. A pool that keeps a reference instead of a copy shows later rows in earlier results.

    Args:
        **counting: Settings of `CountingEnv`.
    """

    def __init__(self, **counting: Any) -> None:
        super().__init__(**counting)
        self._buffer = np.zeros(self._row_layout.shape, dtype=self._row_layout.dtype)

    def _observe(self, action: float) -> NDArray[Any]:
        return self._write_row(self._buffer, action)


def _row_space(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if int(np.prod(shape)) < MIN_ROW_SIZE:
        raise ValueError(f"obs_shape needs at least {MIN_ROW_SIZE} elements in all, got {shape}")
    if dtype.kind not in "fi":
        raise ValueError(f"dtype must be a float or a signed integer, since rows hold -1, got {dtype}")
    if dtype.itemsize < MIN_ITEM_BYTES:
        raise ValueError(f"dtype must be at least {8 * MIN_ITEM_BYTES} bits wide, since rows hold counts, got {dtype}")
    high = np.inf if dtype.kind == "f" else np.iinfo(dtype).max
    low = -np.inf if dtype.kind == "f" else np.iinfo(dtype).min
    return spaces.Box(low, high, shape, dtype.type)
