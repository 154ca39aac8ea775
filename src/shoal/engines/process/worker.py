"""What runs in a worker process: it builds envs, then serves their lanes until told to stop.

    start ─▶ build envs ─▶ READY ─▶ ATTACH ─▶ READY ─▶ each lane: wait for go · run what is due · publish · post done

The worker cannot outlive the pool: it holds one end of a pipe, and the kernel kills it when the other end closes,
even if an env hangs in C code with the GIL held. It leads a process group, so that whatever its envs have started is
killed as well, unless that has left the group.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import socket
import threading
import traceback
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import Arena, Rows, words
from shoal.engines.base import PHASES, Command, EngineConfig, Extra, Request
from shoal.engines.lane import Lane
from shoal.engines.process import shipping, surroundings
from shoal.engines.process.control import Control, Plan
from shoal.engines.process.forms import FormWriter
from shoal.engines.process.letters import Mailbox
from shoal.engines.process.notes import Note, Notes, pack_fault
from shoal.engines.process.quick_rounds import CALLS, POSITION, ROUNDS, rounds_of
from shoal.engines.process.wake import NOBODY_WAITS, REORDERS, Fence, waiter_of
from shoal.engines.process.wire import Channel, FrameError, Kind
from shoal.errors import ShippingError, Where
from shoal.faults import Fault, fault_from
from shoal.machine import pin_thread
from shoal.streams import above_streams, keep_streams_taken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.spec import EnvSpec

_IDLE_SLICE_S = 30.0
_F_SETSIG = 10


class SharedFd:
    """A file descriptor that survives the trip into a worker, whatever the start method."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _received_fd, (reduction.DupFd(self.fd),)


def _received_fd(duplicate: Any) -> SharedFd:
    # This runs while a worker unpickles its arguments, before multiprocessing calls its main function: a Ctrl-C in
    # between would print another traceback next to the user's own.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return SharedFd(above_streams(duplicate.detach()))


@dataclass(frozen=True)
class Boot:
    """What a worker is started with.

    The first worker in a place builds its envs and reports. One of a later generation replaces a worker that was
    lost: it builds no env until it is told to.
    """

    worker: int
    config: EngineConfig
    factories: bytes
    lanes: tuple[tuple[int, range], ...]
    memory: SharedFd
    channel: SharedFd
    lifeline: SharedFd
    stacks: SharedFd
    stderr: SharedFd
    entropy: int
    generation: int = 0
    seat: int = 0
    limited: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def env_ids(self) -> list[int]:
        """The envs this worker hosts."""
        return [i for _, ids in self.lanes for i in ids]

    @property
    def seeds(self) -> list[int]:
        """Seeds for the generators that every process has, which must differ from those of other workers."""
        key = (self.worker, self.generation) if self.generation else (self.worker,)
        seeds: list[int] = np.random.SeedSequence(self.entropy, spawn_key=key).generate_state(3).tolist()
        return seeds


def main(boot: Boot) -> None:
    """Entry point of the worker process."""
    keep_streams_taken()
    _settle(boot)
    worker = Worker(boot)
    with surroundings.single_threaded_libraries(boot.limited):
        worker.serve()
    worker.channel.close()


def _settle(boot: Boot) -> None:
    """Make this process a good worker: deaf to Ctrl-C, tied to the pool's life, ready to show its stacks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)
    for use_of_terminal in (signal.SIGTTIN, signal.SIGTTOU):  # else, an env that sets the terminal would be stopped
        signal.signal(use_of_terminal, signal.SIG_IGN)
    lifeline = boot.lifeline.fd
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())  # the minus sign stands for the whole group
    fcntl.fcntl(lifeline, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    try:
        if os.read(lifeline, 1) == b"":
            os._exit(1)  # the pool died before the kernel was asked to watch it
    except BlockingIOError:
        pass
    os.dup2(boot.stderr.fd, 2)
    os.close(boot.stderr.fd)
    faulthandler.register(signal.SIGUSR1, file=boot.stacks.fd, all_threads=True)
    faulthandler.enable(file=boot.stacks.fd)
    pin_thread(boot.config.affinity, boot.seat)
    surroundings.seed_generators(boot.seeds)
    surroundings.adopt_environment(boot.environ)


class Worker:
    """The envs of one process, in one or more lanes."""

    def __init__(self, boot: Boot) -> None:
        self.boot = boot
        self.channel = Channel(socket.socket(fileno=boot.channel.fd))
        self.lanes: list[Lane] = []
        self._mailbox = Mailbox()
        # Lanes of one worker share the channel; a lock inside one process dies with it.
        self._sending = threading.Lock()
        self._receiving = threading.Lock()

    def serve(self) -> None:
        """Build, attach, run until stopped, close."""
        is_first = not self.boot.generation
        try:
            self._prepare()
            if is_first:
                self._report_built(self._build())
            servers = self._attach()
        except Exception as error:
            if not is_first:
                raise
            self._report([], {}, [self._failure(error)], is_lost=True)
            return
        if is_first:
            self._report([], {}, [])
        threads = [threading.Thread(target=_serve, args=(server,), daemon=True) for server in servers[1:]]
        for thread in threads:
            thread.start()
        servers[0].serve()
        for thread in threads:
            thread.join()

    def _prepare(self) -> None:
        """Make the lanes; factories that cannot be loaded here become factories that fail."""
        boot = self.boot
        try:
            unpacked = shipping.unpack_factories(boot.factories)
        except BaseException as error:
            unpacked = [partial(_raise, error)] * len(boot.env_ids)
        # The lane looks its factories up by env id, so a dict serves as well as the whole pool's list.
        config = replace(boot.config, factories=dict(zip(boot.env_ids, unpacked, strict=True)))
        self.lanes = [Lane(config, ids, boot.worker, copies_infos=False) for _, ids in boot.lanes]
        # Libraries that load from now on see the limit in their environment.
        surroundings.limit_loaded_libraries(boot.limited)
        surroundings.seed_torch(boot.seeds)

    def _build(self) -> list[Fault]:
        faults: list[Fault] = []
        for lane in self.lanes:
            for env_id in lane.env_ids:
                fault = lane.build_one(env_id)
                faults += [fault] if fault else []
                self.channel.send(Kind.BUILT, env_id, b"", _patient)
        return faults

    def _attach(self) -> list[LaneServer]:
        """Wait for the shared memory, and put the lanes on it."""
        frame = self.channel.receive(None)
        if frame is None or frame.kind is not Kind.ATTACH:
            raise FrameError(0, "the pool sent no plan of its memory")
        plan: Plan
        rounds: int
        plan, rounds = shipping.unpickle_value(frame.payload)
        self.control = Control(plan, Arena(self.boot.memory.fd, plan.layout.size_bytes))
        rows = Rows(plan.rows, self.control.columns)
        for lane in self.lanes:
            lane.attach(rows)
        places = zip(self.lanes, self.boot.lanes, strict=True)
        return [LaneServer(self, lane, index, rounds) for lane, (index, _) in places]

    def _report_built(self, faults: list[Fault]) -> None:
        specs = {env_id: spec for lane in self.lanes for env_id, spec in lane.specs.items()}
        # Envs of one worker nearly always agree; their spec then travels once.
        kinds = [specs[i] for i in sorted(specs)][:1]
        index = {}
        for env_id, spec in specs.items():
            place = next((k for k, kind in enumerate(kinds) if kind.difference(spec) is None), len(kinds))
            kinds += [spec] if place == len(kinds) else []
            index[env_id] = place
        try:
            self._report(kinds, index, faults)
        except ShippingError:
            self._report([replace(kind, registered=None) for kind in kinds], index, faults)

    def _report(
        self, kinds: list[EnvSpec], index: dict[int, int], faults: list[Fault], *, is_lost: bool = False
    ) -> None:
        payload = shipping.pickle_value((kinds, index, [pack_fault(fault) for fault in faults], is_lost), "spec")
        self.channel.send(Kind.READY, -1, payload, _patient)

    def _failure(self, error: Exception) -> Fault:
        """A failure outside of any env, which takes them all with it."""
        ids = tuple(self.boot.env_ids)
        where = Where(ids, "construct", self.boot.worker, os.getpid())
        return replace(fault_from(error, env_id=ids[0], phase="construct"), where=where)

    def request_for(self, env_id: int, letter: int) -> Request:
        """What the pool sends along with this env's command."""
        with self._receiving:
            while (request := self._mailbox.take(env_id, letter)) is None:
                frame = self.channel.receive(None)
                if frame is not None and frame.kind is Kind.REQUESTS:
                    self._mailbox.put(frame.payload)
            return request

    def announce(self) -> None:
        """Count a note that will follow, before its row is published, so that the pool knows to wait for it."""
        with self._sending:
            self.control.notes[self.boot.worker] += 1

    def tell(self, kind: Kind, env_id: int, payload: bytes) -> None:
        """Send an announced note."""
        with self._sending:
            self.channel.send(kind, env_id, payload, _patient)


class LaneServer:
    """Runs one lane's pending commands each time the pool says go."""

    def __init__(self, worker: Worker, lane: Lane, index: int, rounds: int) -> None:
        self.worker = worker
        self.lane = lane
        self.index = index
        self.control = worker.control
        self.one_by_one = worker.boot.config.one_by_one
        lane.watch(self.control.columns["running"], index)
        self._first = lane.env_ids[0]
        self._capacity = worker.control.plan.capacity
        self._seen = np.array([0, rounds, 0])  # calls and rounds seen, and rows published
        self._books = words(self._seen)
        self._fence = Fence()
        self._forms = FormWriter(self.control)
        self._notes = Notes(lane, self._forms, worker.boot.config.allow_pickle)

    def serve(self) -> None:
        """Wait and run until stopped, then close the envs."""
        self._serve_quickly() if self.lane.sweeps else self._serve()
        self.lane.close()

    def _serve(self) -> None:
        control, books = self.control, self._books
        waiter = waiter_of(control.columns, "go", "calls", "awaited", self.index)
        calls = control.calls
        while not control.stop[0]:
            if waiter.wait(books[CALLS] + 1, _IDLE_SLICE_S) and books[CALLS] != (now := calls[self.index]):
                books[CALLS] = now
                self._run()

    def _serve_quickly(self) -> None:
        """The same, but rounds in which no env has a message to send are served by compiled code."""
        seen, written = self._seen, self._forms.written
        rounds = rounds_of(self.control.columns, self.lane, self._notes.add_all, written, seen, _IDLE_SLICE_S)
        while (has_messages := rounds.serve()) is not None:
            if has_messages:
                self._publish(self._notes.take())
            else:
                self._run()

    def _run(self) -> None:
        if self.control.leaving[self.worker.boot.worker]:
            for slot in self.lane.slots.values():
                slot.defers = True
        rounds = self.control.rounds[self.index]
        if rounds != self._books[ROUNDS]:
            self._books[ROUNDS] = rounds
            self._forms.wipe_all()
            outcomes = self.lane.step_all(self.control.block[self._first])
            self._books[POSITION] += len(self.lane.slots)
            self._publish([] if self._notes.add_all(outcomes) else self._notes.take())
        else:
            self._run_pending()

    def _run_pending(self) -> None:
        control = self.control
        issued, finished, command, block = control.issued, control.finished, control.command, control.block
        letter, running, host, index = control.letter, control.running, control.host, self.index
        ring = index * self._capacity
        notes, books, count = self._notes, self._books, 0
        for env_id in self.lane.env_ids:
            sequence = issued[env_id]
            if sequence == finished[env_id] or host[env_id] != index:
                continue
            running[index] = env_id
            self._forms.wipe(env_id)
            outcome = self._outcome(env_id, command[env_id], letter[env_id], block[env_id])
            if outcome is not None:
                notes.add(env_id, outcome, Command(command[env_id]))
            finished[env_id] = sequence
            control.order[ring + books[POSITION] % self._capacity] = env_id
            books[POSITION] += 1
            count += 1
            if self.one_by_one:
                self._publish(notes.take())
                count = 0
        if count:
            self._publish(notes.take())

    def _outcome(self, env_id: int, command: int, letter: int, block: int) -> Extra | Fault | None:
        try:
            request = self.worker.request_for(env_id, letter) if letter else None
        except ShippingError as error:
            return self.lane.fault(env_id, PHASES[Command(command)], error)
        return self.lane.run(env_id, command, request, block)

    def _publish(self, notes: list[Note]) -> None:
        """Make finished rows visible, wake the pool if it waits for nothing else, then send what goes with the rows.

        In this order, because a large message can only leave while the pool reads, and the pool reads once it is awake.
        """
        control = self.control
        for _ in notes:
            self.worker.announce()
        control.running[self.index] = -1
        lane = self.lane
        if lane.ends:
            control.ends[self.index] += lane.ends
            lane.ends = 0
        if REORDERS:
            self._fence()  # the rows must be there before it is said that they are
        control.progress[self.index] = self._books[POSITION]
        self._fence()
        wanted = control.wanted[0]
        if wanted != NOBODY_WAITS and (notes or sum(control.progress) >= wanted):
            control.done.post()
        for kind, env_id, payload in notes:
            self.worker.tell(kind, env_id, payload)


def _serve(server: LaneServer) -> None:
    """Run a lane in a thread. If that fails, the whole worker must: the pool notices that, and not a missing thread."""
    try:
        server.serve()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def _raise(error: BaseException) -> Any:
    raise error


def _patient() -> None:
    """Keep waiting: if the pool is gone, so is this process."""
