"""Who waits for a letter gets that one, however often it and others come."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.engines.base import Request
from shoal.engines.process.homes import Homes
from shoal.engines.process.letters import NO_LETTER, Letters, Mailbox
from shoal.errors import ShippingError


@pytest.fixture
def letters() -> Letters:
    return Letters(Homes(4, 2, 1, has_spare=False))


def read(letters: Letters, worker: int) -> Mailbox:
    """What a worker has after it was sent everything."""
    mailbox = Mailbox()
    for index, letter in letters.outbox:
        if index == worker:
            mailbox.put(letter)
    return mailbox


def test_each_worker_gets_one_letter_with_what_concerns_its_envs(letters: Letters) -> None:
    number = letters.post({0: Request(seed=10), 1: Request(seed=11), 2: Request(seed=12)})
    assert [index for index, _ in letters.outbox] == [0, 1]
    first, second = read(letters, 0), read(letters, 1)
    assert first.take(1, number) == Request(seed=11)
    assert first.take(2, number) is None
    assert second.take(2, number) == Request(seed=12)


def test_a_letter_whose_commands_were_never_given_is_nobodys(letters: Letters) -> None:
    letters.post({0: Request(seed=10), 1: Request(seed=11)})
    number = letters.post({0: Request(seed=20)})
    mailbox = read(letters, 0)
    assert mailbox.take(1, number) is None
    assert mailbox.take(0, number) == Request(seed=20)


def test_a_letter_that_has_not_come_is_waited_for(letters: Letters) -> None:
    first = letters.post({0: Request(seed=10)})
    mailbox = read(letters, 0)
    second = letters.post({0: Request(seed=20)})
    assert mailbox.take(0, second) is None
    assert NO_LETTER not in (first, second)
    assert read(letters, 0).take(0, second) == Request(seed=20)


def test_a_letter_that_comes_twice_is_read_once(letters: Letters) -> None:
    number = letters.post({0: Request(seed=10)})
    mailbox = read(letters, 0)
    assert mailbox.take(0, number) == Request(seed=10)
    mailbox.put(letters.outbox[0][1])
    later = letters.post({0: Request(seed=20)})
    mailbox.put(letters.outbox[1][1])
    assert mailbox.take(0, later) == Request(seed=20)


def test_what_cannot_be_sent_is_no_letter(letters: Letters) -> None:
    wrong: dict[str, Any] = {"stream": (number for number in range(3))}
    with pytest.raises(ShippingError):
        letters.check({0: Request(options=wrong)})
    with pytest.raises(ShippingError):
        letters.post({0: Request(seed=1), 3: Request(options=wrong)})
    assert letters.outbox == []


def refuse() -> None:
    raise RuntimeError("no loading today")


class FailsToLoad:
    """Pickles, and raises when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def test_what_cannot_be_read_is_an_error_for_whom_it_is_meant_alone(letters: Letters) -> None:
    number = letters.post({0: Request(seed=10), 1: Request(options={"odd": FailsToLoad()})})
    mailbox = read(letters, 0)
    with pytest.raises(ShippingError, match="RuntimeError: no loading today"):
        mailbox.take(1, number)
    assert mailbox.take(0, number) == Request(seed=10)
