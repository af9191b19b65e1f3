"""`revive`: what died or was cancelled gets another life, and its key if it is free."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.errors import KeyConflict
from outlast.job import Added, Death, Progress, Status, dead, done

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_answers(store: FullStore) -> None:
    [ended, buried, _] = await start(store, job("done"), job("dead"), job("running"))
    await store.settle([done(ended), dead(buried, OOPS)])
    await add(store, job("queued"), job("cancelled"))
    await store.cancel(["cancelled"])
    asked = ["done", "dead", "missing", "running", "queued", "cancelled", "dead"]
    assert list(await store.revive(asked)) == [False, True, False, False, False, True, False]
    assert list(await store.revive([])) == []


async def test_fresh_budgets(store: FullStore, place: Place) -> None:
    await add(store, job("a", max_crashes=2, priority=3, payload=b"1", headers={"h": "1"}))
    for _ in range(2):
        [running] = await take(store)
        await store.renew([running], 10, [Progress(id="a", value=0.5)])
        await store.recover_worker("w1", Death(alone=True))
    assert (await get(store, "a")).status is Status.DEAD
    await store.revive(["a"])
    store = await place.reopen()
    found = await get(store, "a")
    assert (found.status, found.failures, found.crashes) == (Status.QUEUED, 0, 0)
    assert (found.suspect, found.finished_at, found.worker) == (False, None, None)
    assert (found.priority, found.payload, found.headers) == (3, b"1", {"h": "1"})
    [running] = await take(store)
    await store.settle([dead(running, OOPS)])
    assert (await get(store, "a")).failures == 1


async def test_it_is_due_at_once(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("late", delay=1000), job("expired", ttl=5))
    clock.advance(6)
    await store.prune(10)
    await store.cancel(["late"])
    assert list(await store.revive(["late", "expired"])) == [True, True]
    assert sorted(ids(await take(store))) == ["expired", "late"]


async def test_it_takes_its_key_again(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", key="k", keep_key=10, digest=b"1"))
    await store.cancel(["a"])
    clock.advance(100)
    await store.revive(["a"])
    clock.advance(100)
    assert list(await store.add([job(key="k", digest=b"1")])) == [Added("a", created=False)]
    with pytest.raises(KeyConflict):
        await store.add([job(key="k", digest=b"2")])
    [running] = await take(store)
    await store.settle([done(running)])
    clock.advance(9)
    assert list(await store.add([job(key="k", digest=b"1")])) == [Added("a", created=False)]
    clock.advance(1)
    await add(store, job("b", key="k", digest=b"2"))


@pytest.mark.parametrize("ended", [False, True])
async def test_another_job_holds_its_key(store: FullStore, clock: FakeClock, ended: bool) -> None:
    await add(store, job("x"), job("a", key="k", keep_key=10))
    await store.cancel(["x", "a"])
    clock.advance(10)
    holder = await start(store, job("b", key="k", keep_key=100))
    if ended:
        await store.settle([done(holder)])
    with pytest.raises(KeyConflict, match="b"):
        await store.revive(["x", "a"])
    for id_ in ("x", "a"):
        assert (await get(store, id_)).status is Status.CANCELLED
    if ended:
        clock.advance(100)
        assert list(await store.revive(["x", "a"])) == [True, True]


async def test_other_keys_are_no_hindrance(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", key="k", keep_key=0), job("b", key="other"))
    await store.cancel(["a"])
    clock.advance(1)
    await store.prune(100)
    assert list(await store.revive(["a"])) == [True]


async def test_two_that_want_one_key(store: FullStore, clock: FakeClock) -> None:
    for id_ in ("a", "b"):
        await add(store, job(id_, key="k", keep_key=10))
        await store.cancel([id_])
        clock.advance(10)
    with pytest.raises(KeyConflict):
        await store.revive(["a", "b"])
    statuses = [each.status for each in await store.get(["a", "b"]) if each]
    assert statuses == [Status.CANCELLED] * 2
    assert list(await store.revive(["b"])) == [True]
    with pytest.raises(KeyConflict):
        await store.revive(["a"])


async def test_an_old_life_cannot_settle_the_new_one(store: FullStore) -> None:
    old = await start(store, job("a"))
    await store.settle([dead(old, OOPS)])
    await store.revive(["a"])
    assert len(await store.settle([done(old)])) == 1
    [new] = await take(store)
    assert new.receipt != old.receipt
    assert len(await store.settle([done(old)])) == 1
    assert list(await store.settle([done(new)])) == []
