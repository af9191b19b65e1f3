"""Ids: UUIDs of version 7 that no two processes and no two threads make alike, in order of time."""

from __future__ import annotations

import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from outlast.chance import SystemChance, made_at

MANY = 5000


def test_ids_are_uuids_of_version_7_in_order() -> None:
    chance = SystemChance()
    made = [chance.uuid7() for _ in range(MANY)]
    assert made == sorted(set(made))
    for text in made:
        read = uuid.UUID(text)
        assert str(read) == text
        assert (read.version, read.variant) == (7, uuid.RFC_4122)


def test_every_bit_that_is_free_is_drawn() -> None:
    """62 of them, as RFC 9562 has it: each is set in about half of the ids."""
    chance = SystemChance()
    made = [uuid.UUID(chance.uuid7()).int for _ in range(MANY)]
    shares = [sum(one >> bit & 1 for one in made) / MANY for bit in range(62)]
    assert min(shares) > 0.4
    assert max(shares) < 0.6


def test_threads_make_none_twice() -> None:
    chance = SystemChance()

    def some(_: int) -> list[str]:
        return [chance.uuid7() for _ in range(MANY)]

    with ThreadPoolExecutor(8) as pool:
        made = [id_ for part in pool.map(some, range(8)) for id_ in part]
    assert len(set(made)) == 8 * MANY


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_others() -> None:
    chance = SystemChance()
    chance.uuid7()  # a hundred endings are drawn by now
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, "".join(chance.uuid7()[19:] for _ in range(50)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    theirs = {text[at : at + 17] for at in range(0, len(text), 17)}
    assert len(theirs) == 50
    assert theirs.isdisjoint(chance.uuid7()[19:] for _ in range(200))


def test_an_id_of_ours_tells_when_it_was_made() -> None:
    before = time.time()
    made = made_at(SystemChance().uuid7())
    assert made is not None
    assert before - 0.001 <= made <= time.time()
    for other in ("", "a", str(uuid.uuid4()), "x" * 36, "x" * 14 + "7" + "x" * 21):
        assert made_at(other) is None
