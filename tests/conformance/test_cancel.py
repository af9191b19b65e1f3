"""`cancel`: queued jobs at once, running ones by asking, and never forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import ENDED, OOPS, add, get, job, start, take

from outlast.job import Death, Status, dead, done, give_back, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_answers(store: FullStore) -> None:
    [ended, _] = await start(store, job("ended"), job("running"))
    await store.settle([done(ended)])
    await add(store, job("queued"), job("late", delay=60))
    asked = ["late", "missing", "queued", "running", "ended", "queued"]
    assert list(await store.cancel(asked)) == [
        "cancelled",
        "missing",
        "cancelled",
        "requested",
        "ended",
        "ended",
    ]
    assert list(await store.cancel([])) == []


async def test_a_queued_job_is_cancelled_for_good(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    await add(store, job("a"), job("late", delay=60))
    clock.advance(1)
    cancelled_at = clock.now()
    await store.cancel(["a", "late"])
    for _ in range(2):
        store = await place.reopen()
        for id_ in ("a", "late"):
            found = await get(store, id_)
            assert (found.status, found.finished_at) == (Status.CANCELLED, cancelled_at)
            assert found.failure is not None
            assert found.failure.kind == "cancelled"
            assert found.attempt == 0
        clock.advance(60)
        assert await take(store) == []


async def test_a_running_job_goes_on(store: FullStore) -> None:
    running = await start(store, job("a"))
    await store.cancel(["a"])
    assert await get(store, "a") == running.job
    assert list(await store.cancel(["a"])) == ["requested"]
    assert list(await store.settle([done(running, b"1")])) == []
    assert (await get(store, "a")).status is Status.DONE


WAYS_BACK: dict[str, Any] = {
    "retry": lambda store, claim: store.settle([retry(claim, 0, OOPS)]),
    "delayed retry": lambda store, claim: store.settle([retry(claim, 60, OOPS)]),
    "give_back": lambda store, claim: store.settle([give_back(claim)]),
    "not started": lambda store, claim: store.settle([give_back(claim, started=False)]),
    "recover_worker": lambda store, claim: store.recover_worker("w1", Death(signal=9)),
    "untouched": lambda store, claim: store.recover_worker("w1", Death(started=frozenset())),
    "recover": lambda store, claim: store.recover(10),
}


@pytest.mark.parametrize("way", WAYS_BACK)
async def test_a_requested_one_does_not_come_back(
    store: FullStore, clock: FakeClock, place: Place, way: str
) -> None:
    running = await start(store, job("a"), lease=10)
    await store.cancel(["a"])
    store = await place.reopen()
    clock.advance(10)
    await WAYS_BACK[way](store, running)
    found = await get(store, "a")
    assert (found.status, found.finished_at) == (Status.CANCELLED, clock.now())
    assert found.failure is not None
    assert found.failure.kind == "cancelled"
    assert (await store.depth("default")).cancelled == 1
    clock.advance(100)
    assert await take(store) == []


async def test_what_is_counted_of_the_last_run(store: FullStore) -> None:
    await start(store, job("crashed"), job("ahead"))
    await store.cancel(["crashed", "ahead"])
    await store.recover_worker("w1", Death(started=frozenset({"crashed"}), alone=True))
    crashed, ahead = await get(store, "crashed"), await get(store, "ahead")
    assert (crashed.status, crashed.attempt, crashed.crashes) == (Status.CANCELLED, 1, 1)
    assert (ahead.status, ahead.attempt, ahead.crashes) == (Status.CANCELLED, 0, 0)


async def test_a_request_does_not_hinder_burial(store: FullStore) -> None:
    running = await start(store, job("a"))
    await store.cancel(["a"])
    await store.settle([dead(running, OOPS)])
    assert (await get(store, "a")).status is Status.DEAD


async def test_a_request_is_forgotten_when_the_job_is_revived(store: FullStore) -> None:
    running = await start(store, job("a"))
    await store.cancel(["a"])
    await store.settle([give_back(running)])
    await store.revive(["a"])
    [running] = await take(store)
    assert list(await store.renew([running], 10)) == []
    await store.settle([retry(running, 0, OOPS)])
    assert (await get(store, "a")).status is Status.QUEUED


async def test_many(store: FullStore) -> None:
    names = [f"{n}" for n in range(500)]
    await add(store, *(job(name) for name in names))
    assert list(await store.cancel(names)) == ["cancelled"] * 500
    assert len(await store.find(status=[Status.CANCELLED], limit=1000)) == 500
    assert len(await store.find(status=ENDED, limit=1000)) == 500


async def test_another_namespace(store: FullStore, place: Place) -> None:
    await add(store, job("a"))
    assert list(await (await place.open("other")).cancel(["a"])) == ["missing"]
