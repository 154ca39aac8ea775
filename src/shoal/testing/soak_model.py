"""What a soak expects of each row, and what it calls a row that does not meet this.

The model knows, for each env, which life it is in and how far along. Usual rows are compared all at once; the first and
last rows of episodes, rows with infos and rows that report faults are judged one by one.

    lost         a command whose row never came, or a row that is further along than it should be
    duplicated   a row that was there before, or one that answers nothing
    torn         a row whose parts belong to different steps
    strayed      a row of another env
    stale        a row of an earlier life
    boundary     flags, counts or infos that do not fit the row
    fault        a fault row that is not as promised, has no reason, or is missing
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.seeding import restart_seed
from shoal.testing.soak_deaths import Deaths
from shoal.testing.soak_env import (
    CELLS,
    CODE_MASK,
    HANGS,
    INFO_EVERY,
    LETHAL,
    NEVER,
    NUM_ACTIONS,
    ONE_STEP,
    TOTAL_AT,
    Moment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.batch import Batch
    from shoal.testing.soak_env import Doom, Hazard, Journal

VIOLATIONS = ("lost", "duplicated", "torn", "strayed", "stale", "boundary", "fault")
MOST_NOTES = 20

_RUNNING, _OVER, _NEW = 0, 1, 2
_FAULT_KEYS = {"kind", "message", "traceback", "phase", "env_id", "incarnation", "attempts"}
_ERRORS = {"EnvStepError", "EnvResetError", "EnvConstructError"}


class _Row(NamedTuple):
    env: int
    obs: Any
    reward: float
    terminated: bool
    truncated: bool
    elapsed: int
    first: bool
    info: dict[str, Any]
    final: tuple[Any, dict[str, Any]] | None


class Model:
    """The expectations of one pool, and how they were met.

    Args:
        hazard: What the envs are going to do.
        journal: What they have done.
        num_envs: How many there are.
        same_step: Whether the pool resets in the step that ends an episode.
        limit: The pool's own time limit.
        seed: The pool's seed.
        worker_of: The worker of each env.
    """

    def __init__(
        self,
        hazard: Hazard,
        journal: Journal,
        num_envs: int,
        *,
        same_step: bool,
        limit: int,
        seed: int,
        worker_of: Sequence[int],
    ) -> None:
        self._hazard, self._journal, self._same_step, self._limit, self._seed = hazard, journal, same_step, limit, seed
        self.deaths = Deaths(journal, worker_of)
        self.violations: Counter[str] = Counter()
        self.notes: list[str] = []
        self.faults: Counter[str] = Counter()
        self.rows = self.resets = self.steps = self.fault_rows = self.attempts = 0
        self.episodes = self.truncations = self.natural_truncations = self.cuts = 0
        self.sent_N = np.zeros(num_envs, np.int64)
        self.answered_N = np.zeros(num_envs, np.int64)
        self._code_N = np.zeros(num_envs, np.int64)
        # Steps left in the episode, and until the one that fails; the usual row has more than one of both.
        self._left_N = np.zeros(num_envs, np.int64)
        self._doom_in_N = np.full(num_envs, NEVER, np.int64)
        self._elapsed_N = np.zeros(num_envs, np.int64)
        self._state_N = np.full(num_envs, _NEW, np.int8)
        self._last_obs = np.zeros((num_envs, CELLS))
        self._lives = [0] * num_envs
        # Lives that had begun at the last look, while it was not yet known whether they had ended: one or none.
        self._begun = [0] * num_envs
        self._episodes = [0] * num_envs
        self._dooms: list[Doom | None] = [None] * num_envs
        self._incarnations = [0] * num_envs
        self._resetting: set[int] = set()

    # ------------------------------------------------------------------ commands

    def actions(self, ids: Any) -> Any:
        """The actions for one step of these envs, which are being sent."""
        actions = (self.sent_N[ids] * 31 + np.asarray(ids)) % NUM_ACTIONS
        self.sent_N[ids] += 1
        return actions

    def note_reset(self, ids: Sequence[int]) -> None:
        """Note that these envs are being reset."""
        self.sent_N[ids] += 1
        self._resetting.update(ids)

    @property
    def outstanding(self) -> int:
        """Rows that are still to come."""
        return int((self.sent_N - self.answered_N).sum())

    # ------------------------------------------------------------------ rows

    def take(self, batch: Batch, ids: Sequence[int] | None = None) -> None:
        """Judge a batch; ``ids`` are those it should have, in this order."""
        env_N = batch.env_id
        if ids is not None and env_N.tolist() != list(ids):
            self._complain("lost", f"rows of {list(ids)} were due, those of {env_N.tolist()} came")
        obs, reward = batch.obs, batch.reward
        wanted = self._code_N[env_N] + ONE_STEP & CODE_MASK
        plain = (obs == wanted[:, None]).all(axis=1) & (reward == wanted)
        plain &= (self._state_N[env_N] == _RUNNING) & (self._left_N[env_N] > 1) & (self._doom_in_N[env_N] > 1)
        plain &= ~(batch.terminated | batch.truncated | batch.first)
        plain &= batch.elapsed_step == self._elapsed_N[env_N] + 1
        plain &= self.sent_N[env_N] > self.answered_N[env_N]
        infos, finals = dict(batch.infos), batch.finals
        plain[[*infos, *finals]] = False
        plain &= (wanted >> TOTAL_AT) % INFO_EVERY != 0
        self._advance(env_N[plain], wanted[plain], obs[plain])
        for row in np.flatnonzero(~plain).tolist():
            flags = bool(batch.terminated[row]), bool(batch.truncated[row])
            counts = int(batch.elapsed_step[row]), bool(batch.first[row])
            info = infos.get(row, {})
            self._judge(_Row(int(env_N[row]), obs[row], float(reward[row]), *flags, *counts, info, finals.get(row)))
        self.rows += len(env_N)

    def _advance(self, env_N: Any, codes: Any, obs: Any) -> None:
        self._code_N[env_N] = codes
        self._left_N[env_N] -= 1
        self._doom_in_N[env_N] -= 1
        self._elapsed_N[env_N] += 1
        self.answered_N[env_N] += 1
        self._last_obs[env_N] = obs
        self.steps += len(env_N)

    def _judge(self, row: _Row) -> None:
        env = row.env
        if self.answered_N[env] >= self.sent_N[env]:
            self._complain("duplicated", f"env {env}: a row that answers nothing")
        was_reset = env in self._resetting
        self._resetting.discard(env)
        self.resets += was_reset
        self.steps += not was_reset
        self.truncations += row.truncated
        if "fault" in row.info:
            self._judge_fault(row, was_reset)
        elif was_reset or self._state_N[env] != _RUNNING:
            self._judge_first(row)
        else:
            self._judge_step(row)
        self.answered_N[env] += 1
        self._last_obs[env] = row.obs

    def _judge_step(self, row: _Row) -> None:
        env = row.env
        self._left_N[env] -= 1
        self._doom_in_N[env] -= 1
        self._elapsed_N[env] += 1
        if self._doom_in_N[env] == 0:
            self._complain("fault", f"env {env}: {self._dooms[env]} was to happen, and a row came")
        code = int(self._code_N[env] + ONE_STEP & CODE_MASK)
        is_end = self._left_N[env] == 0
        obs, info = row.obs, row.info
        if is_end and self._same_step:
            if row.final is None:
                self._complain("boundary", f"env {env}: an episode ended without its last row")
            else:
                obs, info = row.final
        self._compare(env, obs, code, row.reward)
        self._expect_flags(row, self._flags(env) if is_end else (False, False))
        self._expect_counts(row, int(self._elapsed_N[env]), first=bool(is_end and self._same_step))
        moment = Moment.decode(code)
        action = (int(self.answered_N[env]) * 31 + env) % NUM_ACTIONS
        wanted = {"code": code, "action": action} if moment.total % INFO_EVERY == 0 else {}
        if info != wanted:
            self._complain("torn", f"env {env} at {moment}: its info is {info}, not {wanted}")
        if is_end:
            self.episodes += 1
            self.natural_truncations += self._flags(env)[1]
            if self._same_step:
                self._begin(env, row.obs, self._lives[env], self._episodes[env] + 1)
            else:
                self._state_N[env] = _OVER
                self._code_N[env] = code
        else:
            self._code_N[env] = code

    def _judge_first(self, row: _Row) -> None:
        """Judge the row of a reset that went well."""
        env = row.env
        is_new = self._state_N[env] == _NEW
        life, episode = (self._lives[env] + 1, 1) if is_new else (self._lives[env], self._episodes[env] + 1)
        if is_new:
            self._expect_seed(row)
        elif self._is_reset_due(env):
            self._complain("fault", f"env {env}: {self._dooms[env]} was to happen, and a row came")
        self._expect_flags(row, (False, False))
        self._expect_counts(row, 0, first=True)
        if row.reward != 0:
            self._complain("boundary", f"env {env}: a reset with reward {row.reward}")
        self._begin(env, row.obs, life, episode, self._begun[env])

    def _begin(self, env: int, obs: Any, life: int, episode: int, most_lives: int = 0) -> None:
        """Note that an episode has begun; if lives may have passed unseen, up to ``most_lives`` more will do."""
        told = Moment.decode(int(obs[0]) if np.isfinite(obs[0]) else 0)
        life = min(max(told.life, life), life + most_lives)
        self._compare(env, obs, Moment(0 if episode == 1 else self._total(env), episode, life, env, 0).encode())
        is_new = life != self._lives[env]
        self._lives[env], self._episodes[env], self._begun[env] = life, episode, 0
        if is_new:
            self._dooms[env] = doom = self._hazard.doom(env, life)
            self._doom_in_N[env] = doom.at if doom.where == "step" else NEVER
        self._left_N[env] = min(self._hazard.episode(env, life, episode)[0], self._limit)
        self._code_N[env] = int(obs[0]) if np.isfinite(obs[0]) else 0
        self._elapsed_N[env] = 0
        self._state_N[env] = _RUNNING

    def _total(self, env: int) -> int:
        """Steps of this life, including a step that ended an episode in the same row."""
        ended_here = self._same_step and self._left_N[env] == 0
        return Moment.decode(int(self._code_N[env] + (ONE_STEP if ended_here else 0)) & CODE_MASK).total

    # ------------------------------------------------------------------ faults

    def _judge_fault(self, row: _Row, was_reset: bool) -> None:
        env, note = row.env, row.info["fault"]
        self.fault_rows += 1
        if note.keys() - {"folder"} != _FAULT_KEYS or note["env_id"] != env:
            self._complain("fault", f"env {env}: told as {note}")
            return
        attempts = int(note["attempts"])
        self.attempts += attempts
        self.faults[note["kind"]] += 1
        self._incarnations[env] += attempts
        if attempts < 1 or note["incarnation"] != self._incarnations[env]:
            self._complain("fault", f"env {env}: incarnation {note['incarnation']}, not {self._incarnations[env]}")
        if why := self._unexplained(env, note, was_reset):
            self._complain("fault", f"env {env}: {note['kind']} without a reason ({why}): {note['message'][:200]}")
        # A life has just ended, unless none had begun; each further attempt may have been another one.
        unseen = attempts if self._state_N[env] == _NEW else attempts - 1
        if was_reset:
            self._expect_flags(row, (False, False))
            self._expect_counts(row, 0, first=True)
        else:
            self._judge_cut(row)
        if was_reset or self._same_step:
            self._expect_seed(row)
            self._begin(env, row.obs, self._lives[env] + 1, 1, unseen + self._begun[env])
        else:
            self._state_N[env] = _NEW
        if row.reward != 0:
            self._complain("fault", f"env {env}: a fault row with reward {row.reward}")

    def _judge_cut(self, row: _Row) -> None:
        """Judge the end of an episode that a fault has cut short."""
        env = row.env
        self.episodes += 1
        self.cuts += 1
        self._expect_flags(row, (False, True))
        self._expect_counts(row, int(self._elapsed_N[env]), first=self._same_step)
        last = row.obs
        if self._same_step:
            if row.final is None or row.final[1].get("fault") != row.info["fault"]:
                self._complain("fault", f"env {env}: a fault row without its final row")
                return
            last = row.final[0]
        if not np.array_equal(last, self._last_obs[env]):
            self._complain("fault", f"env {env}: last observation {last[0]}, not {self._last_obs[env][0]}")

    def _unexplained(self, env: int, note: dict[str, Any], was_reset: bool) -> str | None:
        """Why there is no reason for a fault; None if there is one."""
        if self._state_N[env] == _NEW:
            first_missed = self._lives[env] + 1
            lives = self._journal.lives(env)
            dooms = [self._hazard.doom(env, life) for life in range(first_missed, lives + 1)]
            if not (self._same_step or was_reset) and lives >= first_missed:
                # A command that was held back is on its way by now, and may have begun the last of these lives.
                self._begun[env] = int(self.sent_N[env] - self.answered_N[env] > 1)
                self._lives[env] = lives - self._begun[env]
            due = [d for d in dooms if d.where == "init" or (d.where == "reset" and d.at == 1)]
        else:
            due = [d for d in [self._dooms[env]] if d is not None and self._is_due(env, was_reset)]
        for doom in due:
            kinds = {"WorkerDied"} if doom.kind in LETHAL else {"EnvTimeout"} if doom.kind in HANGS else _ERRORS
            if note["kind"] in kinds:
                return None
        return self.deaths.explain(env, note)

    def _is_due(self, env: int, was_reset: bool) -> bool:
        """Whether this command is the one at which the env's plan has its fault."""
        if was_reset or self._state_N[env] == _OVER:
            return self._is_reset_due(env)
        if self._doom_in_N[env] == 1:
            return True
        return self._same_step and self._left_N[env] == 1 and self._is_reset_due(env)

    def _is_reset_due(self, env: int) -> bool:
        doom = self._dooms[env]
        return doom is not None and doom.where == "reset" and doom.at == self._episodes[env] + 1

    # ------------------------------------------------------------------ comparing

    def _compare(self, env: int, obs: Any, wanted: int, reward: float | None = None) -> None:
        cells = np.unique(obs)
        if len(cells) == 1 and cells[0] == wanted and reward in (None, wanted):
            return
        expected = Moment.decode(wanted)
        if len(cells) != 1 or not np.isfinite(cells[0]):
            self._complain("torn", f"env {env} at {expected}: {len(cells)} different cells")
            return
        told = Moment.decode(int(cells[0]))
        if told.tag != env:
            kind = "strayed"
        elif told.life != expected.life:
            kind = "stale" if told.life < expected.life else "lost"
        elif told != expected:
            kind = "duplicated" if told < expected else "lost"
        else:
            kind = "torn"  # the observation is right, so the reward is not
        self._complain(kind, f"env {env}: {expected} was due, {told} came, with reward {reward}")

    def _flags(self, env: int) -> tuple[bool, bool]:
        """The flags that the last step of the episode that has just ended should have."""
        length, terminated, truncated = self._hazard.episode(env, self._lives[env], self._episodes[env])
        return terminated and length <= self._limit, truncated or length >= self._limit

    def _expect_flags(self, row: _Row, wanted: tuple[bool, bool]) -> None:
        if (row.terminated, row.truncated) != wanted:
            self._complain("boundary", f"env {row.env}: flags {row.terminated, row.truncated}, not {wanted}")

    def _expect_counts(self, row: _Row, elapsed: int, *, first: bool) -> None:
        if (row.elapsed, row.first) != (elapsed, first):
            self._complain("boundary", f"env {row.env}: elapsed, first {row.elapsed, row.first}, not {elapsed, first}")

    def _expect_seed(self, row: _Row) -> None:
        """Check the seed that the env was given, which the first row of a life reports."""
        env, incarnation = row.env, self._incarnations[row.env]
        root = self._seed + env
        # The pool's own seed serves the first reset, however often that has to be tried.
        wanted = restart_seed(root, env, incarnation) if self.answered_N[env] else root
        if row.info.get("seed") != wanted:
            self._complain("stale", f"env {env}, incarnation {incarnation}: seed {row.info.get('seed')}, not {wanted}")

    def check_end(self) -> None:
        """When all rows have come: check that the envs are where the model has them."""
        shots, _ = self._journal.shots()
        missed = {(shot.tag, shot.life) for shot in shots}
        for env, life in enumerate(self._lives):
            if self._state_N[env] == _NEW:
                continue
            if self._journal.lives(env) != life:
                self._complain(
                    "stale", f"env {env}: its rows are of life {life}, it was built {self._journal.lives(env)}x"
                )
            if (env, life) in missed:
                self._complain("fault", f"env {env}: life {life} went wrong, and no row has told of it")

    def _complain(self, kind: str, what: str) -> None:
        self.violations[kind] += 1
        if len(self.notes) < MOST_NOTES:
            self.notes.append(f"{kind}: {what} (row {self.rows} and after)")
