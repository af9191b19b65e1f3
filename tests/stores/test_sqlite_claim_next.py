"""Claims that wait in the writer: nothing is missed, nothing is claimed for nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.conftest import Place
from tests.conformance.steps import add, claim_next, ids, job, never, soon, start, take
from tests.conformance.test_claim_next import parked
from tests.engine.rig import until

from outlast.store import Feature
from outlast.stores.sqlite.writer import GROUP

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place("sqlite", f"sqlite:///{tmp_path}/jobs.db")
    yield place
    await place.close()


@pytest.fixture
async def store(place: Place) -> Any:
    store = await place.open()
    assert Feature.PROMPT in store.features
    return store


async def test_others_jobs_do_not_end_up_with_it(store: Any) -> None:
    task = await parked(store, queues=["a"])
    names = await add(store, job(queue="b"))
    assert await soon(task) == []
    task = await parked(store, queues=["a"])
    await add(store, job("mine", queue="a"))
    assert ids(await soon(task)) == ["mine"]
    assert ids(await take(store, queues=["b"])) == names


class Busy:
    """The writer begins its next transaction, and goes on when it is told to."""

    def __init__(self, writer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._writer, self._begin = writer, writer._begin
        self._go = threading.Event()
        self._begun = threading.Event()
        monkeypatch.setattr(writer, "_begin", self._held)

    def _held(self) -> None:
        self._begun.set()
        assert self._go.wait(60)
        self._begin()

    async def begun(self) -> None:
        await until(self._begun.is_set)

    def go_on(self) -> None:
        self._go.set()


async def test_enough_before_the_writer_has_come_to_it(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(store, job())
    (await parked(store)).cancel()
    writer, enough = store._writer, never()
    busy = Busy(writer, monkeypatch)
    renewing = asyncio.ensure_future(store.renew([running], 5.0))
    await busy.begun()
    task = asyncio.ensure_future(claim_next(store, enough=enough))
    await until(lambda: writer._waiting)
    enough.cancel()
    await until(lambda: writer._roused)
    busy.go_on()
    await soon(renewing)
    assert await soon(task) == []


async def test_enough_while_others_fill_the_next_transaction(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(store, job())
    (await parked(store)).cancel()
    writer, enough = store._writer, never()
    busy = Busy(writer, monkeypatch)
    renewing = [asyncio.ensure_future(store.renew([running], 5.0))]
    await busy.begun()
    renewing.append(asyncio.ensure_future(store.renew([running] * GROUP, 5.0)))
    await until(lambda: writer._waiting)
    task = asyncio.ensure_future(claim_next(store, enough=enough))
    await until(lambda: len(writer._waiting) == 2)
    enough.cancel()
    await until(lambda: writer._roused)
    busy.go_on()
    await asyncio.wait(renewing)
    assert await soon(task) == []


async def test_news_that_others_have_seen_before_the_writer_has_come_to_it(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two claims: it set no alarm, since there was something to look at."""
    busy = Busy(store._writer, monkeypatch)
    first = asyncio.ensure_future(claim_next(store))
    await busy.begun()
    second = asyncio.ensure_future(claim_next(store))
    await until(lambda: store._writer._waiting)
    busy.go_on()
    assert await soon(first) == []
    assert await soon(second) == []


async def test_a_refused_add_does_not_hide_the_next(store: Any) -> None:
    await add(store, job("first", queue="full"))
    task = await parked(store)
    with pytest.raises(asyncio.QueueFull):
        await store.add([job(queue="full")], 1)
    assert await soon(task) == []
    task = await parked(store)
    await add(store, job("next"))
    assert ids(await soon(task)) == ["next"]


async def test_large_claims_that_wait_hold_nobody_up(store: Any) -> None:
    (await parked(store)).cancel()
    limit, lease = 1500, 1e9
    calls = [
        *(store._claim_op(["a"], [None], limit, lease, "w", patient=True) for _ in range(2)),
        store._add_op([job(queue="b")], None),
    ]
    for call in calls:
        call.reply = never()
        call.idle = call.idle and (lambda: True)
    adding = calls[-1].reply
    # Whatever is waiting when the writer wakes up, one wake-up is all it gets.
    store._writer._waiting.extend(calls)
    store._writer._wake.set()
    async with asyncio.timeout(60):
        await adding
