"""Claims that wait in the writer: nothing is missed, nothing is claimed for nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.conformance.conftest import Place
from tests.conformance.steps import add, claim_next, ids, job, never, soon, start, take
from tests.conformance.test_claim_next import parked
from tests.engine.rig import until

from outlast import Outlast
from outlast.job import Alike, done, give_back
from outlast.store import Feature
from outlast.stores.sqlite import asking
from outlast.stores.sqlite.claims import claim
from outlast.stores.sqlite.store import SqliteStore
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


class Found:
    """How claims come by their jobs: as they are added, or by looking for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked = 0
        monkeypatch.setattr(asking, "claim", self._look)

    def _look(self, *args: Any) -> Any:
        self.looked += 1
        return claim(*args)


OWN = {
    "codec": "own", "headers": {"a": "b"}, "max_attempts": 3, "max_crashes": None, "timeout": 9.0,
    "keep": 60.0, "on_repeat": "replace",
}  # fmt: skip


@pytest.mark.parametrize("more", [{}, OWN], ids=["plain", "with options"])
@pytest.mark.parametrize("many", [1, 2, 300])
async def test_what_comes_starts_as_it_is_written(
    store: Any, place: Place, monkeypatch: pytest.MonkeyPatch, many: int, more: Any
) -> None:
    """As the store and the ledger tell, it is the same as if it had been looked for."""
    by_looking = await start(store, job(**more), worker="w")
    task = await parked(store, 300)
    found = Found(monkeypatch)
    names = [f"{n:03}" for n in range(many)]
    jobs = [job(name, payload=name.encode(), **more) for name in names]
    answers = await store.add(Alike(job("", **more), names, [each.payload for each in jobs]))
    assert [(answer.id, answer.created) for answer in answers] == [(name, True) for name in names]
    claims = await soon(task)
    assert found.looked == 0
    assert [(each.job.id, each.job.payload) for each in claims] == [
        (name, name.encode()) for name in names
    ]
    for each in claims:
        like = replace(by_looking.job, id=each.job.id, payload=each.job.payload)
        assert each.job == like
    assert {each.fence for each in claims} == {by_looking.fence}
    assert await store.get(names) == [each.job for each in claims]
    assert (await store.depth("default")).running == many + 1
    assert await take(store, 9) == []
    assert list(await store.settle([done(each, b"1") for each in claims])) == []
    assert (await store.depth("default")).done == many


async def test_what_started_as_it_was_written_has_a_lease(store: Any, place: Place) -> None:
    task = await parked(store, lease=30.0)
    [name] = await add(store, job())
    [claimed] = await soon(task)
    for passed in (0, 20, 20):
        place.clock.advance(passed)
        recovered = sum([await store.recover(9) for _ in range(3)])
        assert recovered == (1 if passed and place.clock.monotonic() > 1030 else 0)
    assert ids(await take(store)) == [name]
    assert [each.claim for each in await store.settle([done(claimed)])] == [claimed]


async def test_more_than_was_asked_for_does_not_start(store: Any) -> None:
    task = await parked(store, 1)
    await store.add(Alike(job(""), ["a", "b"], [b"1", b"2"]))
    assert ids(await soon(task)) == ["a"]
    assert ids(await take(store)) == ["b"]


async def test_what_others_added_meanwhile_comes_first(
    store: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    other: Any = await place.open()
    task = await parked(store)
    monkeypatch.setattr(store._writer, "rouse", lambda: None)  # before it is heard of
    await add(other, job("theirs"))
    await add(store, job("ours"))
    assert ids(await soon(task)) == ["theirs", "ours"]


async def test_of_two_claims_that_wait_each_is_answered(store: Any) -> None:
    tasks = [await parked(store), asyncio.ensure_future(claim_next(store))]
    await until(lambda: len(store._writer._parked) == 2)
    await add(store, job("one"))
    assert sorted([ids(await soon(task)) for task in tasks]) == [[], ["one"]]


@pytest.mark.parametrize("many", [1, 3])
async def test_what_is_due_comes_before_what_is_added(store: Any, place: Place, many: int) -> None:
    await add(store, job("due", delay=10))
    task = await parked(store, many)
    place.clock._elapsed += 20  # and wakes nobody
    await store.add(Alike(job(""), ["new"], [b"1"]))
    assert ids(await soon(task)) == ["due", "new"][:many]


async def test_a_queue_that_rests_starts_nothing(store: Any) -> None:
    await store.pause("default")
    task = await parked(store)
    await store.add(Alike(job(""), ["new"], [b"1"]))
    assert await soon(task) == []
    await store.pause("default", False)
    assert ids(await take(store)) == ["new"]


async def test_what_is_stored_already_does_not_start_again(store: Any) -> None:
    running = await start(store, job("old"))
    task = await parked(store)
    answers = await store.add(Alike(job(""), ["old", "new"], [b"null", b"null"]))
    assert [answer.created for answer in answers] == [False, True]
    assert ids(await soon(task)) == ["new"]
    assert list(await store.settle([done(running)])) == []


async def test_a_task_of_others_does_not_start(store: Any) -> None:
    task = await parked(store)
    await store.add(Alike(job("", task="others"), ["new"], [b"1"]))
    assert await soon(task) == []
    assert (await store.depth("default")).ready == 1


async def test_what_comes_back_beside_it_comes_first(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start(store, job("back"))
    task = await parked(store, 1)
    busy = Busy(store._writer, monkeypatch)
    renewing = asyncio.ensure_future(store.renew([running], 5.0))
    await busy.begun()
    adding = asyncio.ensure_future(store.add(Alike(job(""), ["new"], [b"1"])))
    settling = asyncio.ensure_future(store.settle([give_back(running)]))
    await until(lambda: len(store._writer._waiting) == 2)
    busy.go_on()
    await asyncio.gather(renewing, adding, settling)
    assert ids(await soon(task)) == ["back"]


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


async def test_what_came_starts_before_a_worker_asks_for_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was less than it asked for, so that the next claim is one that waits."""
    app, ask, seen = Outlast(f"sqlite:///{tmp_path}/jobs.db"), SqliteStore.claim_next, []

    @app.task(name="note")
    async def note(n: int) -> None:
        seen.append(f"ran {n}")

    async def claim_next(*how: Any) -> Any:
        seen.append("asked")
        return await ask(*how)

    monkeypatch.setattr(SqliteStore, "claim_next", claim_next)
    async with app:
        await app.enqueue_many([note.call(n) for n in range(3)])
        async with app.worker(concurrency=5):
            await until(lambda: seen.count("asked") > 1)
    assert seen[:5] == ["asked", "ran 0", "ran 1", "ran 2", "asked"]
