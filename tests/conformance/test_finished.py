"""`finished`: those that have ended, as soon as there is one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import OOPS, add, ids, job, soon, start, take, waiting

from outlast.errors import JobNotFound
from outlast.job import Death, Status, cancelled, dead, done, give_back

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_what_has_ended_already(store: FullStore) -> None:
    [a, b] = await start(store, job("a"), job("b"))
    await add(store, job("c"))
    await store.settle([done(a, b"1"), dead(b, OOPS)])
    found = await store.finished(["c", "b", "a"], 100)
    assert ids(list(found)) == ["b", "a"]
    assert [each.status for each in found] == [Status.DEAD, Status.DONE]
    assert [each.result for each in found] == [None, b"1"]


async def test_none_in_time(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a"), job("b"))
    assert list(await store.finished(["a", "b"], 0)) == []
    task = await waiting(store.finished(["a", "b"], 30))
    assert await clock.run(task, 31) >= 30
    assert list(task.result()) == []


ENDINGS: dict[str, Any] = {
    "done": lambda store, claim: store.settle([done(claim)]),
    "dead": lambda store, claim: store.settle([dead(claim, OOPS)]),
    "cancelled": lambda store, claim: store.settle([cancelled(claim)]),
    "crashed": lambda store, claim: store.recover_worker("w1", Death(alone=True)),
}


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_wakes_at_the_end(
    store: FullStore, clock: FakeClock, place: Place, end: str, elsewhere: bool
) -> None:
    running = await start(store, job("a", max_crashes=1))
    await add(store, job("b"))
    task = await waiting(store.finished(["b", "a"], 100))
    await ENDINGS[end](await place.open() if elsewhere else store, running)
    if elsewhere:
        # A store may poll for what others did, by the clock.
        await clock.run(task, 2, step=0.25)
    assert ids(list(await soon(task))) == ["a"]


async def test_cancelled_in_the_queue(store: FullStore) -> None:
    await add(store, job("a"))
    task = await waiting(store.finished(["a"], 100))
    await store.cancel(["a"])
    assert [each.status for each in await soon(task)] == [Status.CANCELLED]


async def test_what_comes_back_is_not_finished(store: FullStore) -> None:
    running = await start(store, job("a"))
    task = await waiting(store.finished(["a"], 100))
    await store.settle([give_back(running)])
    [running] = await take(store)
    done_, _ = await asyncio.wait((task,), timeout=0.05)
    assert not done_
    await store.settle([done(running)])
    assert ids(list(await soon(task))) == ["a"]


async def test_unknown_ids(store: FullStore) -> None:
    await add(store, job("a"))
    with pytest.raises(JobNotFound, match="missing"):
        await store.finished(["a", "missing"], 100)


async def test_what_is_not_kept_is_not_found(store: FullStore) -> None:
    running = await start(store, job("a", keep=0))
    task = await waiting(store.finished(["a"], 100))
    await store.settle([done(running)])
    with pytest.raises(JobNotFound):
        await soon(task)


async def test_many_wait_for_many(store: FullStore) -> None:
    claims = await start(store, *(job(f"{n}") for n in range(50)))
    tasks = [asyncio.ensure_future(store.finished([f"{n}"], 100)) for n in range(50)]
    await asyncio.sleep(0)
    await store.settle([done(claim, claim.job.id.encode()) for claim in claims])
    for n, task in enumerate(tasks):
        [found] = await soon(task)
        assert found.result == b"%d" % n


async def test_cancelled_while_waiting(store: FullStore) -> None:
    running = await start(store, job("a"))
    for _ in range(10):
        task = asyncio.ensure_future(store.finished(["a"], 100))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await store.settle([done(running)])
    assert ids(list(await store.finished(["a"], 100))) == ["a"]
