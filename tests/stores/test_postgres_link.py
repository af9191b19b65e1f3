"""A connection to PostgreSQL: how long it may take, and when it counts as lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.rig import until

from outlast.clock import SystemClock
from outlast.stores.news import News
from outlast.stores.postgres.address import Address
from outlast.stores.postgres.bell import Bell
from outlast.stores.postgres.link import Link
from outlast.stores.postgres.schema import Names
from outlast.stores.postgres.servertime import ServerTime
from outlast.stores.postgres.turn import Lines


class Connection:
    """Says when it was ended."""

    def __init__(self) -> None:
        self.ended_at: float | None = None

    def terminate(self) -> None:
        self.ended_at = asyncio.get_running_loop().time()


@pytest.fixture
async def connection() -> Connection:
    return Connection()


@pytest.fixture
async def link(connection: Connection) -> Link:
    address = Address("postgresql://nobody@localhost/none", {})
    made: Any = Link(address, Names("outlast", "x"), Lines(), ServerTime(SystemClock()), "test")
    made._connection = connection
    found: Link = made
    return found


async def test_one_alarm_watches_over_many(link: Link, connection: Connection) -> None:
    """It was set for the first, which has ended; the second is given its own time."""
    link._bound(0.02)
    alarm = link._alarm
    link._bound(0.06)
    assert link._alarm is alarm
    deadline = link._deadline
    await until(lambda: connection.ended_at is not None)
    assert connection.ended_at is not None
    assert connection.ended_at >= deadline


async def test_who_has_less_time_is_not_kept_waiting(link: Link, connection: Connection) -> None:
    link._bound(1e6)
    link._bound(0.01)
    await until(lambda: connection.ended_at is not None)


async def test_nothing_is_on_its_way(link: Link, connection: Connection) -> None:
    """The alarm is not set again, and ends nothing."""
    link._bound(0.01)
    link._deadline = float("inf")
    await until(lambda: link._alarm is None)
    assert connection.ended_at is None


class Deaf:
    """The link of a connection whose server does not answer."""

    used_at = 0.0
    check: Any = None
    lost: Any = None

    def __init__(self) -> None:
        self.done: list[str] = []

    async def hold(self) -> Deaf:
        self.done.append("held")
        return self

    async def add_listener(self, channel: str, heard: object) -> None:
        raise TimeoutError

    def abort(self) -> None:
        self.done.append("dropped")

    async def let_go(self) -> None:
        self.done.append("let go")


async def test_who_does_not_answer_is_not_asked_to_listen_again() -> None:
    hearing: Any = Deaf()
    bell = Bell(Address("postgresql://nobody@localhost/none", {}), "x", "me", hearing, News())
    bell.listen()
    await until(lambda: len(hearing.done) >= 3)
    await bell.close()
    assert hearing.done[:3] == ["held", "dropped", "let go"]
    assert not bell.listens
