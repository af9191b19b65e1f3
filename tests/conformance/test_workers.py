"""`beat`, `leave`, `workers`: who is at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from tests.conformance.steps import job

from outlast.job import Status
from outlast.store import WorkerInfo

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_what_a_worker_says_of_itself(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    info = WorkerInfo(
        id="w1",
        host="h",
        pid=42,
        queues=("a", "b"),
        tasks=("t",),
        concurrency=7,
        running=3,
        started_at=clock.now() - 5,
        seen_at=12.0,
        version="1",
        library="SQLite",
    )
    await store.beat(info)
    [found] = await (await place.open()).workers()
    assert found == replace(info, seen_at=clock.now())


async def test_the_last_word_counts(store: FullStore, clock: FakeClock) -> None:
    await store.beat(WorkerInfo(id="w1", host="h", pid=1))
    await store.beat(WorkerInfo(id="w2", host="h", pid=2))
    clock.advance(10)
    await store.beat(WorkerInfo(id="w1", host="h", pid=1, running=5))
    found = {worker.id: worker for worker in await store.workers()}
    assert set(found) == {"w1", "w2"}
    assert found["w1"].running == 5
    assert found["w1"].seen_at == clock.now()
    assert found["w2"].seen_at == clock.now() - 10


async def test_who_left(store: FullStore) -> None:
    await store.beat(WorkerInfo(id="w1", host="h", pid=1))
    await store.beat(WorkerInfo(id="w2", host="h", pid=2))
    await store.leave("w1")
    await store.leave("nobody")
    assert [worker.id for worker in await store.workers()] == ["w2"]


async def test_who_was_not_seen_for_an_hour(store: FullStore, clock: FakeClock) -> None:
    await store.beat(WorkerInfo(id="w1", host="h", pid=1))
    clock.advance(3599)
    assert len(await store.workers()) == 1
    clock.advance(2)
    assert list(await store.workers()) == []


async def test_of_this_namespace_only(store: FullStore, place: Place) -> None:
    await store.beat(WorkerInfo(id="w1", host="h", pid=1))
    assert list(await (await place.open("other")).workers()) == []


async def test_the_namespaces_that_were_ever_used(store: FullStore, place: Place) -> None:
    other, third = await place.open("other"), await place.open("a-third")
    await third.depth("default")
    assert list(await store.namespaces()) == [], "looking leaves nothing behind"
    await store.add([job("one")])
    await other.beat(WorkerInfo(id="w1", host="h", pid=1))
    assert await third.recover(10) == 0
    assert list(await third.namespaces()) == [
        f"{place.prefix}{name}" for name in ("default", "other")
    ]
    await store.purge("default", [Status.QUEUED])
    assert list(await store.namespaces()) == ["default", "other"]
