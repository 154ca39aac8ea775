"""What workers write to stderr: passed on to ours as it comes, and the last lines kept, to explain a death."""

from __future__ import annotations

import contextlib
import os
import selectors
import threading
from dataclasses import dataclass, field

_READ_BYTES = 1 << 16
_KEPT_BYTES = 1 << 13
_KEPT_LINES = 20


@dataclass
class Tail:
    """One worker's stderr: the end of the pipe that we read, and the last of what came."""

    fd: int
    data: bytearray = field(default_factory=bytearray)

    def lines(self) -> str:
        """The last lines."""
        return "\n".join(self.data.decode(errors="replace").splitlines()[-_KEPT_LINES:])


class StderrRelay:
    """Reads the stderr of all workers of a pool in one thread, which sleeps while nobody writes.

    C code writes to stderr too, and the words that matter most come just before a crash. So the worker's file
    descriptor itself is a pipe, and whatever is left in it is read once its writer is dead.
    """

    def __init__(self) -> None:
        self._tails: dict[int, Tail] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="shoal-stderr", daemon=True)
        self._thread.start()

    def add(self, fd: int) -> Tail:
        """Read from this descriptor too; it is ours from now on."""
        os.set_blocking(fd, False)
        tail = Tail(fd)
        with self._lock:
            self._tails[fd] = tail
            self._selector.register(fd, selectors.EVENT_READ)
        self._wake()
        return tail

    def remove(self, tail: Tail) -> None:
        """Read what is left, then let go of the descriptor."""
        with self._lock:
            self._read(tail)
            if self._tails.pop(tail.fd, None) is not None:
                with contextlib.suppress(KeyError):  # it had ended, so the thread has dropped it
                    self._selector.unregister(tail.fd)
                os.close(tail.fd)

    def last_lines(self, tail: Tail) -> str:
        """The last lines of a worker, up to this moment."""
        with self._lock:
            self._read(tail)
            return tail.lines()

    def close(self) -> None:
        """Read what is left of everyone and end the thread."""
        for tail in list(self._tails.values()):
            self.remove(tail)
        self._is_closed = True
        self._wake()
        if self._thread is not threading.current_thread():
            self._thread.join(1.0)
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    def _wake(self) -> None:
        os.write(self._wake_in, b"\0")

    def _serve(self) -> None:
        while not self._is_closed:
            ready = [key.fd for key, _ in self._selector.select()]
            with self._lock:
                for fd in ready:
                    tail = self._tails.get(fd)
                    if tail is not None and not self._read(tail):
                        self._selector.unregister(fd)
            if self._wake_out in ready:
                with contextlib.suppress(BlockingIOError, OSError):
                    os.read(self._wake_out, _READ_BYTES)

    def _read(self, tail: Tail) -> bool:
        """Pass on what has come; False once nobody can write any more."""
        if self._tails.get(tail.fd) is not tail:
            return True
        while True:
            try:
                data = os.read(tail.fd, _READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            tail.data += data
            del tail.data[:-_KEPT_BYTES]
            with contextlib.suppress(OSError):  # our own stderr may be closed
                os.write(2, data)
