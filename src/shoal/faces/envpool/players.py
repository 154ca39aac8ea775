"""Rows of players: what EnvPool makes of envs in which several play.

    the pool has     one row per env, whose observation has a place for every player (``shoal.adapters.pettingzoo``)
    EnvPool has      observations and rewards with one row per player in the game, everything else with one per env

``PlayerPool`` stands in front of the pool and turns its batches into the second form. ``Seats`` remembers who had a
row in the last batch of each env, because the next actions are for those players.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from shoal.batch import Batch, merge_infos
from shoal.faces.envpool.arrayspec import INT32
from shoal.faces.envpool.infos import InfoMaker, without_masks

if TYPE_CHECKING:
    from shoal.pool import Pool
    from shoal.readiness import Ids, Options
    from shoal.seeding import Seed
    from shoal.spec import EnvSpec

Mask = npt.NDArray[np.bool_]


@dataclass(slots=True)
class PlayerBatch(Batch):
    """A batch whose ``obs``, ``reward`` and ``finals`` have one row per player; everything else has one per env.

    Attributes:
        players: What else belongs to each player row: ``env_id``, ``id``, ``terminated``, ``truncated``, and what the
            players report.
    """

    players: dict[str, Any] = field(default_factory=dict)


class PlayerInfoMaker(InfoMaker):
    """Makes the info of a batch, with the players in ``info["players"]``. ``final_obs`` has one row per player."""

    def __call__(self, batch: Batch) -> dict[str, Any]:
        """The info of this batch."""
        players = batch.players if isinstance(batch, PlayerBatch) else {}
        return {
            **self.reported(batch),
            "env_id": batch.env_id,
            "players": players,
            "elapsed_step": batch.elapsed_step,
        }


class Seats:
    """Which players the next actions of each env are for.

    Attributes:
        shown_NK: Players who had a row in the env's last batch; all of them if there was none.
        acting_NK: Those of them who play on. Where there are none, the next step is a reset, and actions are ignored.
    """

    def __init__(self, num_envs: int, num_players: int) -> None:
        self.shown_NK = np.ones((num_envs, num_players), np.bool_)
        self.acting_NK = np.zeros((num_envs, num_players), np.bool_)

    def note_received(self, env_id: npt.NDArray[np.int32], shown: Mask, acting: Mask) -> None:
        """Note that a batch has come back."""
        self.shown_NK[env_id] = shown
        self.acting_NK[env_id] = acting

    def note_sent(self, env_id: Ids) -> None:
        """Note that actions were sent: where nobody was left to act, an episode begins, and anybody may be in it."""
        ids = np.arange(len(self.acting_NK)) if env_id is None else np.asarray(env_id)
        self._expect_all(ids[~self.acting_NK[ids].any(axis=1)])

    def note_reset(self) -> None:
        """Note that all envs were told to begin an episode."""
        self._expect_all(slice(None))

    def _expect_all(self, ids: Any) -> None:
        self.shown_NK[ids] = True
        self.acting_NK[ids] = True


class PlayerPool:
    """A pool of multi-player envs that hands out player rows; actions still have a place for every player.

    Attributes:
        seats: Which players the next actions are for.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._places = {name: place for place, name in enumerate(pool.spec.players)}
        self._tree = player_spec(pool.spec).observation
        self.seats = Seats(pool.num_envs, len(self._places))

    def reset(self, seed: Seed = None, options: Options = None, env_id: Ids = None) -> PlayerBatch:
        """``Pool.reset``."""
        return self._receive(self._pool.reset(seed, options, env_id))

    def step(self, action: Any, env_id: Ids = None) -> PlayerBatch:
        """``Pool.step``."""
        return self._receive(self._pool.step(action, env_id))

    def async_reset(self) -> None:
        """``Pool.async_reset``."""
        self._pool.async_reset()
        self.seats.note_reset()

    def send(self, action: Any, env_id: Ids = None) -> None:
        """``Pool.send``."""
        self._pool.send(action, env_id)
        self.seats.note_sent(env_id)

    def recv(
        self, timeout: float | None = None, min_batch: int | None = None, max_wait: float | None = None
    ) -> PlayerBatch:
        """``Pool.recv``."""
        return self._receive(self._pool.recv(timeout, min_batch, max_wait))

    def latest(self, env_id: Ids = None) -> PlayerBatch:
        """``Pool.latest``."""
        return self._seat(self._pool.latest(env_id))[0]

    def _receive(self, batch: Batch) -> PlayerBatch:
        seated, shown, acting = self._seat(batch)
        self.seats.note_received(batch.env_id, shown, acting)
        return seated

    def _seat(self, batch: Batch) -> tuple[PlayerBatch, Mask, Mask]:
        """The batch with player rows, which players are in it, and which are to act next."""
        table = batch.obs
        alive, terminated, truncated = (table[name].astype(np.bool_) for name in ("alive", "terminated", "truncated"))
        reward = table["reward"]
        # The pool's own time limit ends the episode of every player who is still in the game.
        is_cut = batch.truncated[:, None] & ~terminated
        if batch.finals:
            is_cut[list(batch.finals)] = False
        truncated |= is_cut & alive
        acting = alive & ~(terminated | truncated)
        shown = alive
        if batch.finals:
            # These rows show the next episode already; how the last one ended is in the finals.
            shown = alive.copy()
            for row, (last, _) in batch.finals.items():
                was_alive = last["alive"].astype(np.bool_)
                reward[row] = last["reward"]
                terminated[row] = last["terminated"]
                truncated[row] = last["truncated"]
                truncated[row] |= was_alive & batch.truncated[row] & ~terminated[row]
                shown[row] |= was_alive
        env_row, place = np.nonzero(shown)
        seated = PlayerBatch(
            obs=self._tree.unflatten([column[env_row, place] for column in self._tree.flatten(table["obs"])]),
            reward=reward[env_row, place],
            terminated=batch.terminated,
            truncated=batch.truncated,
            env_id=batch.env_id,
            elapsed_step=batch.elapsed_step,
            first=batch.first,
            fields=batch.fields,
            players={
                "env_id": batch.env_id[env_row],
                "id": place.astype(INT32),
                "terminated": terminated[env_row, place],
                "truncated": truncated[env_row, place],
            },
        )
        if batch.infos or batch.finals:
            self._add_infos(batch, seated, shown)
        return seated, shown, acting

    def _add_infos(self, batch: Batch, seated: PlayerBatch, shown: Mask) -> None:
        """Give each player row what its player reported; the rest belongs to the env."""
        row_of = (np.cumsum(shown) - 1).reshape(shown.shape)
        reports: list[tuple[int, dict[str, Any]]] = []
        rest: list[tuple[int, dict[str, Any]]] = []
        for row, info in batch.infos:
            own = {self._places[name]: part for name, part in info.items() if self._is_report(name, part)}
            reports += [(int(row_of[row, place]), part) for place, part in own.items() if shown[row, place]]
            others = {name: part for name, part in info.items() if not self._is_report(name, part)}
            rest += [(row, others)] if others else []
        if reports:
            seated.players = {**without_masks(merge_infos(len(seated.reward), reports)), **seated.players}
        seated.infos = rest
        seated.finals = {
            int(row_of[row, place]): (
                self._tree.unflatten([leaf[place] for leaf in self._tree.flatten(last["obs"])]),
                info.get(name, {}),
            )
            for row, (last, info) in batch.finals.items()
            for name, place in self._places.items()
            if last["alive"][place]
        }

    def _is_report(self, name: str, info: Any) -> bool:
        return name in self._places and isinstance(info, dict)


def player_spec(spec: EnvSpec) -> EnvSpec:
    """The contract of one player: that of the env if it has only one player."""
    return spec if spec.player is None else spec.player
