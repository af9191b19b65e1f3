"""Claims that wait in the writer: nothing is missed, nothing is claimed for nobody."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.conftest import Place
from tests.conformance.steps import OOPS, add, get, ids, job, soon, start, take, waiting
from tests.engine.rig import until

from outlast.errors import StoreClosed
from outlast.job import Death, Status, give_back, retry
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


def never() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


async def claim(
    store: Any,
    limit: int = 10,
    *,
    timeout: float = 1e9,
    enough: asyncio.Future[None] | None = None,
    **others: Any,
) -> list[Any]:
    how: dict[str, Any] = {"queues": ["default"], "tasks": [None], "lease": 1e9, "worker": "w"}
    how.update(others)
    found = await store.claim_next(
        *(how[name] for name in ("queues", "tasks")),
        limit, how["lease"], how["worker"], timeout, enough or never(),
    )  # fmt: skip
    return list(found)


async def parked(store: Any, limit: int = 10, **how: Any) -> asyncio.Task[Any]:
    """A claim that waits in the writer: before that it may look a few times."""
    for _ in range(5):
        task = asyncio.ensure_future(claim(store, limit, **how))
        while not task.done() and not store._writer._parked:
            await asyncio.wait((task,), timeout=0.001)
        if not task.done():
            return task
        assert task.result() == []
    raise AssertionError("there is nothing to claim, but it returns again and again")


async def test_what_was_there_at_the_start_comes_at_once(store: Any, place: Place) -> None:
    names = await add(store, job())
    found = asyncio.ensure_future(claim(await place.open()))
    assert ids(await soon(found)) == names


async def test_what_is_there_comes_at_once(store: Any) -> None:
    names = await add(store, job(), job(), job())
    assert ids(await soon(asyncio.ensure_future(claim(store, 2)))) == names[:2]
    assert ids(await soon(asyncio.ensure_future(claim(store, 2)))) == names[2:]


@pytest.mark.parametrize("where", ["here", "in another process's store"])
async def test_what_is_added_comes_as_it_is_added(store: Any, place: Place, where: str) -> None:
    other = store if where == "here" else await place.open()
    for round in range(6):
        task = await parked(store)
        await add(other, job(f"{round}", priority=round % 3))
        [claimed] = await soon(task)
        assert claimed.job.id == f"{round}"
        assert (await get(store, claimed.job.id)).status is Status.RUNNING


async def test_a_hundred_at_once_lose_none(store: Any) -> None:
    got: list[str] = []

    async def worker() -> None:
        while len(got) < 300:
            got.extend(ids(await claim(store, 7)))

    working = asyncio.ensure_future(worker())
    for n in range(3):
        await asyncio.gather(*(store.add([job(f"{n}-{m}")]) for m in range(100)))
    await soon(working)
    assert sorted(got) == sorted(f"{n}-{m}" for n in range(3) for m in range(100))


async def test_it_claims_no_more_than_it_was_told(store: Any) -> None:
    task = await parked(store, 1)
    names = await add(store, job(), job())
    assert ids(await soon(task)) == names[:1]
    assert ids(await soon(asyncio.ensure_future(claim(store)))) == names[1:]


async def test_others_jobs_do_not_end_up_with_it(store: Any) -> None:
    task = await parked(store, queues=["a"])
    names = await add(store, job(queue="b"))
    assert await soon(task) == []
    task = await parked(store, queues=["a"])
    await add(store, job("mine", queue="a"))
    assert ids(await soon(task)) == ["mine"]
    assert ids(await take(store, queues=["b"])) == names


async def test_what_comes_due(store: Any, place: Place) -> None:
    await add(store, job("late", delay=20))
    task = await parked(store)
    await place.clock.run(task, 22)
    assert ids(task.result()) == ["late"]


async def test_a_nearer_moment_added_while_it_waits(store: Any, place: Place) -> None:
    await add(store, job(delay=1000))
    task = await parked(store)
    await add(await place.open(), job("near", delay=10))
    for _ in range(3):
        await place.clock.run(task, 12)
        if task.result():
            assert ids(task.result()) == ["near"]
            return
        task = asyncio.ensure_future(claim(store))
    pytest.fail("it was not woken in time")


@pytest.mark.parametrize("way", ["retried", "given back", "recovered"])
async def test_what_comes_back(store: Any, way: str) -> None:
    running = await start(store, job("again"))
    task = await parked(store)
    if way == "recovered":
        await store.recover_worker("w1", Death())
    else:
        await store.settle([retry(running, 0, OOPS) if way == "retried" else give_back(running)])
    assert ids(await soon(task)) == ["again"]


async def test_a_timeout_looks_once_more(store: Any, place: Place) -> None:
    task = await parked(store, timeout=30)
    assert await place.clock.run(task, 31) >= 30
    assert task.result() == []


async def test_enough(store: Any) -> None:
    enough = never()
    task = await parked(store, enough=enough)
    enough.cancel()
    assert await soon(task) == []
    assert len(await add(store, job())) == 1
    assert len(await take(store)) == 1


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
    task = asyncio.ensure_future(claim(store, enough=enough))
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
    task = asyncio.ensure_future(claim(store, enough=enough))
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
    first = asyncio.ensure_future(claim(store))
    await busy.begun()
    second = asyncio.ensure_future(claim(store))
    await until(lambda: store._writer._waiting)
    busy.go_on()
    assert await soon(first) == []
    assert await soon(second) == []


async def test_cancelled_while_it_waits_it_claims_nothing(store: Any) -> None:
    for _ in range(5):
        task = await parked(store)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        [name] = await add(store, job())
        assert (await get(store, name)).status is Status.QUEUED
        assert ids(await take(store)) == [name]


async def test_cancelled_as_it_is_answered_it_gives_back(store: Any) -> None:
    for steps in range(24):
        task = await parked(store)
        adding = asyncio.ensure_future(store.add([job(f"{steps}")]))
        for _ in range(steps % 8):
            await asyncio.sleep(0)
        await asyncio.wait((adding,), timeout=steps % 5 * 2e-4)
        task.cancel()
        await asyncio.wait((task, adding))
        found = [] if task.cancelled() else task.result()
        while not found:
            found = await take(store)
        assert ids(found) == [f"{steps}"]


async def test_a_store_that_closes_lets_it_go(place: Place) -> None:
    store: Any = await place.open()
    task = await parked(store)
    await store.close()
    with pytest.raises(StoreClosed):
        await soon(task)


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


async def test_it_waits_through_what_is_none_of_its_news(store: Any) -> None:
    running = await start(store, job())
    task = await parked(store)
    await store.renew([running], 5.0)
    await store.depth("default")
    await waiting(task)
    task.cancel()
