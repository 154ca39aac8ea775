"""What commands need beyond their rows: seeds, options, calls. Workers get it in letters, on their sockets.

    pool       writes a letter per worker · puts its number beside the commands that need it · sends it
    worker     reads letters until the one with the number of its command has come

An interrupt may come between any two lines. So a letter stays in the outbox until it is known to be gone, and is sent
again if that is in doubt; and one whose commands were never given is nobody's, because its number is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.engines.process import shipping

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.engines.base import Request
    from shoal.engines.process.homes import Homes

NO_LETTER = 0


class Letters:
    """Letters of a pool to its workers.

    Attributes:
        outbox: Worker and letter, in the order in which they are to be sent.
    """

    def __init__(self, homes: Homes) -> None:
        self.outbox: list[tuple[int, bytes]] = []
        self._homes = homes
        self._number = NO_LETTER

    def check(self, requests: Mapping[int, Request]) -> None:
        """See that these requests can be sent.

        Raises:
            ShippingError: If one of them cannot.
        """
        self._written(requests)

    def post(self, requests: Mapping[int, Request]) -> int:
        """Put a letter for every worker concerned into the outbox; returns the number of the letters.

        Raises:
            ShippingError: If a request cannot be sent. Then there is no letter.
        """
        self._number += 1
        self.outbox.extend(self._written(requests).items())
        return self._number

    def _written(self, requests: Mapping[int, Request]) -> dict[int, bytes]:
        by_worker: dict[int, dict[int, tuple[int, Request]]] = {}
        for i, request in requests.items():
            by_worker.setdefault(self._homes.worker_of(i), {})[i] = (self._number, request)
        return {index: shipping.pickle_value(part, "the request") for index, part in by_worker.items()}


class Mailbox:
    """Letters of a worker, which has read some that it does not need yet, or will never need."""

    def __init__(self) -> None:
        self._requests: dict[int, tuple[int, Request]] = {}

    def put(self, letter: bytes) -> None:
        """Keep what a letter says, in the place of what an older one has said."""
        self._requests.update(shipping.unpickle_value(letter))

    def take(self, env_id: int, number: int) -> Request | None:
        """What the letter of this number says to an env; None if it has not come."""
        if self._requests.get(env_id, (NO_LETTER,))[0] != number:
            return None
        return self._requests.pop(env_id)[1]
