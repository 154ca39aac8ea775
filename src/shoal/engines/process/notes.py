"""What a worker has to say beyond its rows, on its way through the socket.

worker   Extra, answer or Fault ── Notes ──▶ frames        what cannot leave the worker becomes a fault of its env
pool     frames ── NoteReader ──▶ Extra, answer or Fault   what this worker could not have sent is refused
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.arrays import words
from shoal.engines.base import PHASES, Command, EngineConfig, Extra
from shoal.engines.process import codec, shipping
from shoal.engines.process.forms import SLIP_BYTES, Form, FormReader
from shoal.engines.process.wire import Frame, FrameError, Kind
from shoal.errors import Where
from shoal.faults import Fault, fault_from
from shoal.slot import Autoreset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shoal.engines.lane import Lane
    from shoal.engines.process.control import Control
    from shoal.engines.process.forms import FormWriter
    from shoal.engines.process.homes import Homes
    from shoal.engines.process.launch import WorkerProcess
    from shoal.spec import EnvSpec

Note = tuple[Kind, int, bytes]
_SLICE_S = 0.05
_BLANK_SLIP = memoryview(bytes(SLIP_BYTES))


class Notes:
    """Outcomes of one lane that go beyond a row and its slip, as messages."""

    def __init__(self, lane: Lane, forms: FormWriter, allow_pickle: bool) -> None:
        self._lane = lane
        self._forms = forms
        self._allow_pickle = allow_pickle
        self._extras: list[bytes] = []
        self._notes: list[Note] = []

    def add(self, env_id: int, outcome: Extra | Fault, command: Command) -> None:
        """Put one outcome in its env's slip, or encode it; one that cannot leave the worker becomes a fault."""
        if not isinstance(outcome, Fault):
            if self._forms.put(env_id, outcome):
                return
            try:
                self._add_result(env_id, outcome)
                return
            except BaseException as error:  # pickling runs code of the env's objects
                outcome = self._lane.refuse(env_id, PHASES[command], error)
        self._notes.append((Kind.FAULT, env_id, pack_fault(outcome)))

    def add_all(self, outcomes: Mapping[int, Extra | Fault]) -> bool:
        """Do that with the outcomes of a step of the whole lane; True if there is no message to take."""
        for env_id, outcome in outcomes.items():
            self.add(env_id, outcome, Command.STEP)
        return not (self._notes or self._extras or self._forms.news)

    def _add_result(self, env_id: int, extra: Extra) -> None:
        if extra.is_answer:
            self._notes.append((Kind.VALUE, env_id, shipping.pickle_value(extra.value, "the answer")))
        else:
            self._extras.append(codec.encode_extra(env_id, extra, allow_pickle=self._allow_pickle))

    def take(self) -> list[Note]:
        """All messages so far; all extras travel in one."""
        notes = self._notes
        if self._extras:
            notes.append((Kind.EXTRAS, -1, codec.join(self._extras)))
        for number, form in self._forms.news:
            notes.append((Kind.FORM, self._lane.place, codec.encode((number, form.described()))))
        self._forms.news.clear()
        self._extras, self._notes = [], []
        return notes


class NoteReader:
    """Takes messages apart, and believes nothing that the worker which sent them could not have said.

    Attributes:
        forms: Reads the infos that need no message.
        taken_N: How many messages of each worker have been read.
    """

    def __init__(self, config: EngineConfig, spec: EnvSpec, control: Control, homes: Homes) -> None:
        self.forms = FormReader(control, len(homes.lanes))
        self._homes = homes
        self._announced = control.notes
        self.taken_N = np.zeros(len(control.notes), np.int64)
        self._taken = words(self.taken_N)
        self._allow_pickle = config.allow_pickle
        self._num_objects = sum(not leaf.is_array for leaf in spec.observation.leaves)
        self._has_finals = config.autoreset is Autoreset.SAME_STEP

    def has_news(self) -> bool:
        """Whether some worker has announced messages that were not taken yet."""
        return bool(self._announced != self._taken)

    def has_news_of(self, index: int) -> bool:
        """Whether this worker has."""
        return bool(self._announced[index] != self._taken[index])

    def forget(self, index: int) -> None:
        """Forget a worker that was lost: the next one in its place begins anew."""
        self._announced[index] = self._taken[index] = 0
        for lane in self._homes.lanes_of(index):
            self.forms.forget(lane)

    def take(
        self, worker: WorkerProcess, commands: Mapping[int, int], patience: Callable[[], None]
    ) -> Iterator[tuple[int, Extra | Fault]]:
        """What the messages that a worker has announced say about which env; see ``read``.

        ``patience`` is asked again and again, while a message does not come, whether to go on waiting.
        """
        index, channel = worker.index, worker.channel
        while self._taken[index] < self._announced[index]:
            frame = channel.frame(channel.num_received + self._taken[index], _SLICE_S)
            if frame is None:
                patience()
                continue
            yield from self.read(frame, worker, commands)
            self._taken[index] += 1  # last: after an interrupt, the frame is read once more
            channel.forget(frame)

    def is_silent(self) -> bool:
        """Whether no worker has anything to say beyond its rows."""
        return bool(self._announced == self._taken) and self.forms.is_silent

    def read_slips_into(self, extras: dict[int, Extra]) -> bool:
        """Take the infos of all lanes; False if one makes no sense, or needs a message."""
        if self.has_news():
            return False
        try:
            extras.update(self.forms.read_all(self._homes.lane_of))
        except FrameError:
            return False
        return True

    def read(self, frame: Frame, worker: WorkerProcess, commands: Mapping[int, int]) -> list[tuple[int, Extra | Fault]]:
        """What a message says about which env.

        Args:
            frame: The message.
            worker: Its sender.
            commands: What those envs of this worker that have not answered yet were told to do.

        Raises:
            FrameError: If this worker could not have sent it now.
        """
        if frame.kind is Kind.EXTRAS:
            return self._read_extras(frame.payload, commands)
        if frame.kind is Kind.FORM and frame.env_id in self._homes.lanes_of(worker.index):
            self._read_form(frame)
            return []
        command = commands.get(frame.env_id)
        if frame.kind is Kind.FAULT and command is not None:
            return [(frame.env_id, _read_fault(frame))]
        if frame.kind is Kind.VALUE and command == Command.CALL:
            return [(frame.env_id, _read_answer(frame, worker))]
        raise FrameError(0, f"a {frame.kind.name} frame where none belongs")

    def _read_extras(self, payload: bytes, commands: Mapping[int, int]) -> list[tuple[int, Extra | Fault]]:
        try:
            extras = codec.decode_extras(payload, allow_pickle=self._allow_pickle)
        except codec.CodecError as error:
            raise FrameError(0, f"no data: {error}") from error
        for env_id, extra in extras:
            if type(env_id) is not int or commands.get(env_id, Command.CALL) == Command.CALL:
                raise FrameError(0, f"an info of env {env_id!r}, which owes none")
            if not self._can_be(extra):
                raise FrameError(0, f"an info of env {env_id} that cannot be one")
        return [*extras]

    def _read_form(self, frame: Frame) -> None:
        try:
            number, description = codec.decode(frame.payload)
            form = Form.from_description(description)
            is_possible = self._can_be(form.read(_BLANK_SLIP, 0))
        except (TypeError, ValueError) as error:
            raise FrameError(0, f"no form: {error}") from error
        if not is_possible:
            raise FrameError(0, "a form of infos that cannot be")
        self.forms.learn(frame.env_id, number, form)

    def _can_be(self, extra: Extra) -> bool:
        has_final = extra.has_final
        return (
            (extra.info is None or isinstance(extra.info, dict))
            and self._are_objects(extra.objects)
            and type(has_final) is bool
            and (not has_final or self._has_finals)
            and (extra.final_info is None or (has_final and isinstance(extra.final_info, dict)))
            and (self._are_objects(extra.final_objects) if has_final else extra.final_objects is None)
        )

    def _are_objects(self, objects: Any) -> bool:
        """Whether these can be the leaves of one observation that fit no column."""
        return type(objects) is list and len(objects) == self._num_objects if self._num_objects else objects is None


def pack_fault(fault: Fault) -> bytes:
    """A fault as bytes, with its exception if that can travel."""
    return shipping.pickle_value((replace(fault, cause=None), shipping.pickle_exception(fault.cause)), "fault")


def unpack_fault(data: bytes) -> Fault:
    """The fault behind ``pack_fault``, with its exception if that came along.

    Raises:
        FrameError: If the bytes are not a fault.
    """
    try:
        fault, cause = shipping.unpickle_value(data)
    except (Exception, SystemExit) as error:
        raise FrameError(0, f"a fault that cannot be loaded ({type(error).__name__}: {error})") from error
    if not isinstance(fault, Fault) or not isinstance(cause, bytes):
        raise FrameError(0, "a fault that is none")
    return replace(fault, cause=shipping.unpickle_exception(cause))


def _read_fault(frame: Frame) -> Fault:
    fault = unpack_fault(frame.payload)
    if fault.where.env_ids != (frame.env_id,):
        raise FrameError(0, f"a fault of env {frame.env_id} that is of {fault.where}")
    return fault


def _read_answer(frame: Frame, worker: WorkerProcess) -> Extra | Fault:
    try:
        return Extra(value=shipping.unpickle_value(frame.payload), is_answer=True)
    except (Exception, SystemExit) as error:
        fault = fault_from(error, env_id=frame.env_id, phase="call")
        where = Where((frame.env_id,), "call", worker.index, worker.pid)
        told = f"its answer cannot be loaded here ({type(error).__name__}: {error})"
        return replace(fault, where=where, summary=told)
