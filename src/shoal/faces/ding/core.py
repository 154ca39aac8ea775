"""What happens inside a manager: which envs run, which are being reset, which have answered.

    step      send actions ─▶ take answers ─▶ count episodes ─▶ start resets that are due
    ready     take resets that have come back

The kinds of managers differ in a few points (``Manners``): where envs run, whether a step waits for every env and for
the resets that it causes, and whether the manager closes when a step has failed for good. Deadlines, retries and
building envs anew are left to the pool.

A reset that has failed for good ends all envs, but raises only where it was waited for. If it was automatic, the rows
of the other envs are handed out first, and the call after that says why the manager cannot go on.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from shoal.errors import EnvTimeout, FaultError, ManagerState, ShoalError, WorkerDied
from shoal.faces.ding.failures import either_class, failure
from shoal.faces.ding.runner import Runner
from shoal.faces.ding.seeds import Seeds
from shoal.faces.ding.states import EnvState, Progress

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from shoal.batch import Batch
    from shoal.faces.ding.config import Manners, Settings


class Core:
    """The envs of one manager, over as many launches as it has.

    Attributes:
        states: The state of each env.
        ready_obs: The latest observation of each env.
        progress: Moves envs from one state to the next.
        reset_param: What each env was last reset with; automatic resets use it again.
        seeds: What each env is to be seeded with when ``begin_reset`` or ``reset`` is called for it.
        failure: The reset that has ended all envs, if that is how they ended.
        events: ``(env id, "reset" or "step", result)`` for every answer, if somebody wants to know.
    """

    def __init__(self, num_envs: int, settings: Settings, manners: Manners) -> None:
        self.num_envs = num_envs
        self.settings = settings
        self.manners = manners
        self.progress = Progress(num_envs, settings)
        self.states = self.progress.states
        self.ready_obs: dict[int, Any] = {}
        self.reset_param: dict[int, Mapping[str, Any] | None] = {}
        self.seeds = Seeds()
        self.failure: FaultError | None = None
        self._runner: Runner | None = None
        self._all_ids = [*range(num_envs)]
        self._steps_at_once = manners.waits_for_all and not manners.in_turn
        # Envs that are being reset, and until when each is worth waiting for.
        self._resetting: dict[int, float] = {}
        self._stepping: set[int] = set()
        # Envs that hang or have died: nothing is left that could be reset.
        self._lost: set[int] = set()
        self._answers: dict[int, Any] = {}
        self.events: deque[tuple[int, str, Any]] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there are envs."""
        return self._runner is not None

    @property
    def runner(self) -> Runner:
        """The envs."""
        return self.check_open()

    def check_open(self) -> Runner:
        """Check that there are envs, and return them.

        Raises:
            ManagerState: If there are none.
        """
        if self._runner is None:
            why = "" if self.failure is None else ", because an env could not be reset"
            raise ManagerState(f"the env manager is closed{why}: launch() it first") from self.failure
        return self._runner

    # ------------------------------------------------------------------ life

    def launch(
        self, env_fns: Sequence[Callable[[], Any]], spaces: tuple[Any, Any], replay_paths: Sequence[str | None]
    ) -> None:
        """Build all envs."""
        self.reset_param = dict.fromkeys(range(self.num_envs))
        self.seeds.forget_given()
        with either_class():
            self._runner = Runner(
                env_fns,
                spaces,
                self.settings,
                engine=self.manners.engine,
                replay_paths=replay_paths,
            )
        self.failure = None
        self.ready_obs.update(dict.fromkeys(range(self.num_envs)))  # from now on, they are in the order of the ids
        self.progress.begin()

    def close(self) -> None:
        """End all envs. May be called twice."""
        self.failure = None
        runner, self._runner = self._runner, None
        self.progress.end()
        for kept in (self.ready_obs, self._resetting, self._stepping, self._lost, self._answers):
            kept.clear()
        if runner is not None:
            runner.close()

    def _end_if_failed(self) -> FaultError | None:
        """End all envs if a reset has failed for good, and return that failure."""
        if (failed := self.failure) is not None:
            self.close()
            self.failure = failed
        return failed

    def _raise_if_failed(self) -> None:
        if (failed := self._end_if_failed()) is not None:
            raise failed

    # ------------------------------------------------------------------ resets

    def begin_reset(self, ids: Iterable[int]) -> None:
        """Start resetting envs, each with the seed that waits for it."""
        self._begin_resets({i: self.seeds.take(i) for i in ids})

    def _begin_resets(self, seeds: Mapping[int, int | None]) -> None:
        """Start resetting envs with what each was last given; those that were lost are built anew."""
        # Telling takes time, and only an env that is built anew needs to be told again.
        may_be_new = self.settings.renews or self.settings.attempts > 1
        wishes = {
            i: self.seeds.wish(i, seed, self.reset_param[i], may_be_new=may_be_new or i in self._lost)
            for i, seed in seeds.items()
        }
        if lost := [i for i in wishes if i in self._lost]:
            self.runner.renew(lost)
            self._lost.difference_update(lost)
        self.runner.begin_reset(wishes)
        until = monotonic() + self.manners.quick_reset_s
        for i in wishes:
            self._stepping.discard(i)
            self._resetting[i] = until
        self.progress.note_resets(wishes)

    def reset(self, ids: Sequence[int]) -> None:
        """Reset envs and wait for them."""
        for i in ids:
            self._answers.pop(i, None)
        for turn in [[i] for i in ids] if self.manners.in_turn else [ids] if ids else []:
            self.begin_reset(turn)
            self.await_resets(turn)
            self._raise_if_failed()

    def await_resets(self, ids: Iterable[int]) -> None:
        """Wait for those of these envs that are being reset."""
        while any(i in self._resetting for i in ids):
            self._take(1, None)

    # ------------------------------------------------------------------ steps

    @property
    def _busy(self) -> Collection[int]:
        """Envs with a step whose answer has not been handed out yet."""
        return self._stepping | self._answers.keys() if self._answers else self._stepping

    def begin_step(self, actions: Mapping[int, Any]) -> None:
        """Start one step per env, without waiting for anything."""
        self.catch_up(wait=False)
        self.check_open()
        self.progress.check_running(actions, self._busy)
        self.runner.begin_step(actions)
        self._stepping.update(actions)

    def next_event(self) -> tuple[int, str, Any]:
        """The next answer to come.

        Raises:
            ManagerState: If nothing is under way.
        """
        while not self.events:
            if not (self._stepping or self._resetting):
                raise ManagerState("nothing is under way that could be received")
            self._take(1, None)
            self._raise_if_failed()
        env_id, method, result = self.events.popleft()
        if method == "step":
            self._answers.pop(env_id, None)
        return env_id, method, result

    def step(self, actions: Mapping[int, Any]) -> dict[int, Any]:
        """Step envs, and return the timesteps of those that have answered, by their ids."""
        ids = [*actions]
        if self._steps_at_once and ids == self._all_ids and self.are_all_ready():  # as most managers do all day
            self._step_at_once(self._all_ids, actions)
        else:
            self._step_some(ids, actions)
        if self._stepping:
            self._await_answers(ids)
        if self._resetting and self.settings.resets_inside:
            self.await_resets(list(self._resetting))
        answers, self._answers = self._answers, {}
        if self.failure is not None and (failed := self._end_if_failed()) and self.settings.resets_inside:
            failed.timesteps.update(answers)  # type: ignore[attr-defined]
            raise failed
        if [*answers] == ids:
            return answers
        # The envs of this call come first, in the order of the call; then those that answer an earlier one.
        return {i: answers[i] for i in [*filter(answers.__contains__, ids), *sorted(answers.keys() - set(ids))]}

    def _step_some(self, ids: list[int], actions: Mapping[int, Any]) -> None:
        """Step envs once it is clear that they can be stepped."""
        if self._resetting:
            self.catch_up(wait=False)
        self.check_open()
        if self.manners.waits_for_all and ids and not self._resetting and not self._stepping:
            self.progress.check_running(ids, self._busy)
            (self._step_in_turn if self.manners.in_turn else self._step_at_once)(ids, actions)
        elif ids:
            self.begin_step(actions)

    def _step_at_once(self, ids: list[int], actions: Mapping[int, Any]) -> None:
        """Step envs while nothing else is under way, in a single call to the pool."""
        self._stepping.update(ids)
        try:
            runner = self._runner or self.check_open()
            self._absorb(runner.step(ids, actions))
        except FaultError as error:
            self._fail(error)
        except ShoalError:  # nothing has moved
            self._stepping.difference_update(ids)
            raise

    def _step_in_turn(self, ids: list[int], actions: Mapping[int, Any]) -> None:
        """Step envs one after another, each with the reset that its step leads to; raise when all had their turn."""
        failed: FaultError | None = None
        for i in ids:
            try:
                self._step_at_once([i], {i: actions[i]})
            except FaultError as error:
                failed = failed or error
                self._answers.update(error.timesteps)  # type: ignore[attr-defined]
            self.await_resets(list(self._resetting))
            if self.failure is not None:
                return
        if failed is not None:
            failed.timesteps.update(self._answers)  # type: ignore[attr-defined]
            self._answers = {}
            raise failed

    def _await_answers(self, ids: Sequence[int]) -> None:
        patience = self.settings.step_wait_timeout
        if self.manners.waits_for_all or patience is None:
            while self._stepping:
                self._take(len(self._stepping), None)
            return
        enough = min(self.settings.wait_num, max(1, len(ids)))
        end = monotonic() + patience
        while self._stepping:
            left = end - monotonic()
            is_enough = len(self._answers) >= enough and not all(t.done for t in self._answers.values())
            if is_enough and left <= 0:
                return
            self._take(1, max(left, 0.0) if is_enough else None)

    # ------------------------------------------------------------------ rows

    def catch_up(self, *, wait: bool = True) -> None:
        """Take resets that have come back; with ``wait``, those that are about to as well."""
        while self._resetting:
            left = max(self._resetting.values()) - monotonic() if wait else 0.0
            if not self._take(1, max(0.0, left)):
                break
        self._end_if_failed()

    def settle(self) -> None:
        """Wait until no env is at work, so that they can be talked to."""
        while self._resetting or self._stepping:
            self._take(1, None)
        self._end_if_failed()

    def are_all_ready(self) -> bool:
        """Whether all envs run and wait for an action, as is usual; then no single one has to be looked at."""
        if self._resetting or self._stepping or self._answers or self.failure is not None:
            return False
        return [*self.states.values()].count(EnvState.RUN) == self.num_envs

    def ready(self) -> list[int]:
        """Envs that run and wait for an action; if there are none yet, this may wait for resets under way."""
        if self.are_all_ready():
            return [*self._all_ids]
        self.catch_up()
        while True:
            busy = self._busy
            ids = [i for i in self.progress.running() if i not in busy]
            if ids or not self._resetting or not self.manners.waits_to_be_ready:
                return ids
            self._take(1, None)
            self._end_if_failed()

    def running(self) -> list[int]:
        """Envs that run, whether or not they have answered; if there are none, this may wait as ``ready`` does."""
        self.catch_up()
        return self.progress.running() or self.ready()

    def _take(self, at_least: int, timeout: float | None) -> bool:
        """Take the rows that have arrived; False if none did in time."""
        try:
            batch = self.runner.receive(at_least, timeout)
        except FaultError as error:
            self._fail(error)
            return True
        if batch is None:
            return False
        self._absorb(batch)
        return True

    def _absorb(self, batch: Batch) -> None:
        ids = batch.env_id.tolist()
        resetting = self._resetting
        if resetting and (back := [row for row, i in enumerate(ids) if i in resetting]):
            self._absorb_resets(batch, ids, back)
            if len(back) == len(ids):
                return
        answers, ends, begun = (self._runner or self.check_open()).timesteps(batch, ids)
        if not self._stepping.issuperset(ids):
            answers = {i: timestep for i, timestep in answers.items() if i in self._stepping}
        self._stepping.difference_update(ids)
        self._answers.update(answers)
        ready_obs = self.ready_obs
        for i, timestep in answers.items():
            ready_obs[i] = timestep.obs
        if self.events is not None:
            self.events.extend((i, "step", timestep) for i, timestep in answers.items())
        if ends:
            self._absorb_ends(ends, answers, begun)

    def _absorb_ends(self, ends: Iterable[int], answers: Mapping[int, Any], begun: Mapping[int, Any]) -> None:
        """Take note of ends of episodes; where the next one has begun, its first observation is in ``begun``."""
        due = []
        for i in ends:
            if i in answers and self.progress.note_end(i, answers[i]):
                if i in begun:
                    self._begin(i, begun[i])
                else:
                    due.append(i)
        if due:  # seeds wait for a reset that the caller asks for
            self._begin_resets(dict.fromkeys(due))

    def _begin(self, env_id: int, obs: Any) -> None:
        """An env is at the beginning of an episode."""
        self.ready_obs[env_id] = obs
        self.states[env_id] = EnvState.RUN
        if self.events is not None:
            self.events.append((env_id, "reset", obs))

    def _absorb_resets(self, batch: Batch, ids: list[int], rows: list[int]) -> None:
        observations = self.runner.observations(batch)
        for row in rows:
            del self._resetting[ids[row]]
            self._begin(ids[row], observations[row])

    # ------------------------------------------------------------------ failures

    def _fail(self, error: FaultError) -> None:
        """An env has failed for good.

        Raises:
            FaultError: If it failed in a step; raised once all other envs have answered, or have been ended.
        """
        failed = self.runner.failed([*self._stepping, *self._resetting]) or list(error.env_ids)
        was_resetting = [i for i in failed if i in self._resetting]
        for i in failed:
            self._stepping.discard(i)
            self._resetting.pop(i, None)
            self.states[i] = EnvState.ERROR
        if isinstance(error, (EnvTimeout, WorkerDied)):
            self._lost.update(failed)
        told = failure(error, error.env_id, self.settings.attempts, self._answers)
        if len(was_resetting) == len(failed):
            self.failure = self.failure or told
            return
        if was_resetting or self.manners.closes_on_failure:
            self.close()
            raise told
        try:
            while self._stepping:
                self._take(len(self._stepping), None)
        finally:
            told.timesteps.update(self._answers)  # type: ignore[attr-defined]
            self._answers = {}
        raise told
