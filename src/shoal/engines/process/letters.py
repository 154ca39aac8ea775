"""What commands need beyond their rows (seeds, options, calls), sent to workers as letters on their sockets.

    pool       writes a letter per worker · puts its number beside the commands that need it · sends it
    worker     reads letters until the one with the number of its command has arrived

An interrupt may come between any two lines. So a letter stays in the outbox until it is known to have been sent, and is
sent again if that is in doubt. A letter whose commands were never given is ignored: no command has its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.engines.process import shipping
from shoal.errors import ShippingError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.engines.base import Request
    from shoal.engines.process.homes import Homes

NO_LETTER = 0


class Letters:
    """Letters from a pool to its workers.

    Attributes:
        outbox: Pairs of worker and letter, in the order in which they are to be sent.
    """

    def __init__(self, homes: Homes) -> None:
        self.outbox: list[tuple[int, bytes]] = []
        self._homes = homes
        self._number = NO_LETTER

    def check(self, requests: Mapping[int, Request]) -> None:
        """Make sure that these requests can be sent.

        Raises:
            ShippingError: If one of them cannot.
        """
        self._written(requests)

    def post(self, requests: Mapping[int, Request]) -> int:
        """Put a letter for every worker concerned into the outbox; returns the number of the letters.

        Raises:
            ShippingError: If a request cannot be sent. No letter is posted then.
        """
        self._number += 1
        self.outbox.extend(self._written(requests).items())
        return self._number

    def _written(self, requests: Mapping[int, Request]) -> dict[int, bytes]:
        by_worker: dict[int, dict[int, tuple[int, Request | bytes]]] = {}
        for i, request in requests.items():
            # What a user has made is packed by itself: if the worker cannot unpack it, that is the fault of one env.
            is_plain = request.options is None and request.call is None and not request.action
            packed = request if is_plain else shipping.pickle_value(request, "the request")
            by_worker.setdefault(self._homes.worker_of(i), {})[i] = (self._number, packed)
        return {index: shipping.pickle_value(part, "the request") for index, part in by_worker.items()}


class Mailbox:
    """Letters that a worker has received, some of which it does not need yet, or will never need."""

    def __init__(self) -> None:
        self._requests: dict[int, tuple[int, Request | bytes]] = {}

    def put(self, letter: bytes) -> None:
        """Keep what a letter says, in place of what an older one said to the same env."""
        self._requests.update(shipping.unpickle_value(letter))

    def take(self, env_id: int, number: int) -> Request | None:
        """What the letter with this number says to an env; None if it has not arrived.

        Raises:
            ShippingError: If it cannot be read here.
        """
        if self._requests.get(env_id, (NO_LETTER,))[0] != number:
            return None
        _, packed = self._requests.pop(env_id)
        if not isinstance(packed, bytes):
            return packed
        try:
            request: Request = shipping.unpickle_value(packed)
        except (Exception, SystemExit) as error:
            told = f"what it was sent cannot be unpickled in the worker ({type(error).__name__}: {error})"
            raise ShippingError(told) from error
        return request
