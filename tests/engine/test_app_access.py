"""Opening and closing: counted, for one loop and one process; errors instead of hanging."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING, cast

import pytest

from outlast import Feature, StoreClosed, StoreUnavailable, Unsupported
from outlast.access import Access, ledger_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.store import Store


class Place:
    """As much of a store as opening needs; opening takes as long as the test wants."""

    url = "place://"
    features = Feature.DELAY

    def __init__(self) -> None:
        self.events: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False

    async def open(self) -> None:
        self.events.append("open")
        await self.gate.wait()
        if self.fails:
            raise StoreUnavailable("not today")

    async def close(self) -> None:
        self.events.append("close")
        await asyncio.sleep(0)


class Places:
    def __init__(self) -> None:
        self.made: list[Place] = []
        self.next: Callable[[], Place] = Place

    def __call__(self) -> Store:
        self.made.append(self.next())
        return cast("Store", self.made[-1])


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
def access(places: Places) -> Access:
    return Access(places)


def _features(access: Access) -> Feature | None:
    return None if access.opened is None else access.opened.features


def anything(store: Store) -> None:
    """Every store is good enough."""


async def test_closed_until_opened_and_after(access: Access, places: Places) -> None:
    with pytest.raises(StoreClosed, match="async with app"):
        access.store()
    await access.open(anything)
    assert access.store() is cast("object", places.made[0])
    await access.close()
    with pytest.raises(StoreClosed, match="async with app"):
        access.store()
    assert places.made[0].events == ["open", "close"]


async def test_nested_opens_are_counted(access: Access, places: Places) -> None:
    await access.open(anything)
    await access.open(anything)
    await access.close()
    assert access.store() is not None
    await access.close()
    assert places.made[0].events == ["open", "close"]


async def test_closing_more_often_than_opening_does_nothing(access: Access, places: Places) -> None:
    await access.close()
    await access.open(anything)
    await access.open(anything)
    await asyncio.gather(*(access.close() for _ in range(5)))
    await access.close()
    assert places.made[0].events == ["open", "close"]
    await access.open(anything)
    assert access.store() is cast("object", places.made[1])


async def test_many_openers_at_once_open_one_store(access: Access, places: Places) -> None:
    await asyncio.gather(*(access.open(anything) for _ in range(20)))
    assert [place.events for place in places.made] == [["open"]]
    await asyncio.gather(*(access.close() for _ in range(20)))
    assert places.made[0].events == ["open", "close"]


async def test_opening_again_while_the_last_one_closes(access: Access, places: Places) -> None:
    await access.open(anything)
    await asyncio.gather(access.close(), access.open(anything))
    assert access.store() is cast("object", places.made[1])
    assert [place.events for place in places.made] == [["open", "close"], ["open"]]


async def test_it_is_not_open_while_it_opens(access: Access, places: Places) -> None:
    slow = Place()
    slow.gate.clear()
    places.next = lambda: slow
    opening = asyncio.create_task(access.open(anything))
    while not slow.events:
        await asyncio.sleep(0)
    with pytest.raises(StoreClosed):
        access.store()
    assert access.opened is None
    await access.close()
    slow.gate.set()
    await opening
    assert access.store() is not None


async def test_a_failed_open_leaves_it_closed_and_can_be_repeated(
    access: Access, places: Places
) -> None:
    broken = Place()
    broken.fails = True
    places.next = lambda: broken
    with pytest.raises(StoreUnavailable):
        await access.open(anything)
    assert broken.events == ["open", "close"]
    places.next = Place
    await access.open(anything)
    assert access.store() is cast("object", places.made[1])


async def test_an_open_that_is_cancelled_leaves_it_closed(access: Access, places: Places) -> None:
    slow = Place()
    slow.gate.clear()
    places.next = lambda: slow
    opening = asyncio.create_task(access.open(anything))
    waiting = asyncio.create_task(access.open(anything))
    while not slow.events:
        await asyncio.sleep(0)
    places.next = Place
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await waiting
    assert slow.events == ["open", "close"]
    assert access.store() is cast("object", places.made[1])


async def test_a_store_that_can_t_do_it_is_refused_before_it_is_opened(
    access: Access, places: Places
) -> None:
    def refuse(store: Store) -> None:
        raise Unsupported(f"only {store.features}")

    with pytest.raises(Unsupported):
        await access.open(refuse)
    assert places.made[0].events == ["close"]


async def test_what_the_store_can_do_is_known_while_it_is_open(access: Access) -> None:
    assert _features(access) is None
    await access.open(anything)
    assert _features(access) == Feature.DELAY


async def test_used_in_another_event_loop_it_says_so(access: Access) -> None:
    await access.open(anything)

    async def elsewhere() -> None:
        with pytest.raises(StoreClosed, match="another event loop"):
            access.store()
        with pytest.raises(StoreClosed, match="another event loop"):
            await access.open(anything)
        with pytest.raises(StoreClosed, match="another event loop"):
            await access.close()

    await asyncio.to_thread(asyncio.run, elsewhere())
    assert access.store() is not None


async def test_used_without_an_event_loop_it_says_so(access: Access) -> None:
    await access.open(anything)

    def look() -> None:
        with pytest.raises(StoreClosed, match="another event loop"):
            access.store()

    await asyncio.to_thread(look)


def test_a_loop_that_ended_without_closing_does_not_block_the_next(
    access: Access, places: Places
) -> None:
    asyncio.run(access.open(anything))

    async def next_time() -> None:
        with pytest.raises(StoreClosed, match="has ended"):
            access.store()
        await access.open(anything)
        assert access.store() is cast("object", places.made[1])
        await access.close()

    asyncio.run(next_time())
    assert [place.events for place in places.made] == [["open"], ["open", "close"]]


async def test_after_a_fork_it_must_be_opened_again(
    access: Access, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the child sees it: the same objects, in a process with another id."""
    await access.open(anything)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(StoreClosed, match="forked"):
        access.store()
    await access.open(anything)
    assert access.store() is cast("object", places.made[1])
    assert places.made[0].events == ["open"], "the parent's connection is not ours to close"


async def test_the_last_close_ends_the_background_loop_too(access: Access) -> None:
    async def whoami(store: Store) -> str:
        return threading.current_thread().name

    await access.open(anything)
    name = await asyncio.to_thread(access.bridge.run, whoami, "")
    assert name == "outlast-bridge"
    await access.close()
    assert not access.bridge.running


def test_a_store_that_can_t_look_jobs_up_says_where_to_keep_them() -> None:
    with pytest.raises(Unsupported, match="sqlite"):
        ledger_of(cast("Store", Place()))
