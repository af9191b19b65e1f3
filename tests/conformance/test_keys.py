"""Keys: one job for each (task, key), while it lives and for as long as it is remembered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.errors import KeyConflict
from outlast.job import DAY, Added, Status, cancelled, dead, done, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock

ENDINGS = {
    "done": lambda claim: done(claim),
    "dead": lambda claim: dead(claim, OOPS),
    "cancelled": lambda claim: cancelled(claim),
}


async def test_a_live_key_answers_its_holder(store: FullStore, place: Place) -> None:
    await add(store, job("a", key="k"))
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    assert list(await (await place.open()).add([job(key="k")])) == [Added("a", created=False)]
    store = await place.reopen()
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    [running] = await take(store)
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    await store.settle([retry(running, 60, OOPS)])
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    assert (await store.depth("default")).live == 1


async def test_other_arguments_are_a_conflict(store: FullStore) -> None:
    await add(store, job("a", key="k", digest=b"1"))
    with pytest.raises(KeyConflict) as caught:
        await store.add([job("b", key="k", digest=b"2")])
    assert "k" in str(caught.value)
    assert "a" in str(caught.value)
    assert list(await store.get(["b"])) == [None]


async def test_only_the_digest_is_compared(store: FullStore) -> None:
    await add(store, job("a", key="k", digest=b"1", payload=b"1", priority=1))
    again = job(key="k", digest=b"1", payload=b" 1", priority=2, queue="other", delay=5)
    assert list(await store.add([again])) == [Added("a", created=False)]


async def test_a_key_belongs_to_its_task(store: FullStore) -> None:
    await add(store, job("a", key="k", task="t1", digest=b"1"))
    await add(store, job("b", key="k", task="t2", digest=b"2"))
    await add(store, job("c", key="k", digest=b"3"))
    await add(store, job("d", key="K", digest=b"4"))
    answers = await store.add([job(key="k", digest=b"3"), job(key="k", task="t2", digest=b"2")])
    assert [answer.id for answer in answers] == ["c", "b"]


async def test_a_key_belongs_to_all_queues(store: FullStore) -> None:
    await add(store, job("a", key="k", queue="one"))
    assert list(await store.add([job(key="k", queue="two")])) == [Added("a", created=False)]


async def test_twice_in_one_batch(store: FullStore) -> None:
    answers = await store.add([job("a", key="k"), job("b", key="k"), job("c")])
    assert list(answers) == [Added("a"), Added("a", created=False), Added("c")]
    assert ids(await take(store)) == ["a", "c"]


async def test_twice_in_one_batch_with_other_arguments(store: FullStore) -> None:
    with pytest.raises(KeyConflict):
        await store.add([job("x"), job("a", key="k", digest=b"1"), job("b", key="k", digest=b"2")])
    assert list(await store.get(["x", "a", "b"])) == [None] * 3
    await add(store, job("b", key="k", digest=b"2"))


async def test_a_conflict_does_not_take_the_other_keys(store: FullStore) -> None:
    await add(store, job("a", key="k", digest=b"1"))
    with pytest.raises(KeyConflict):
        await store.add([job("b", key="free", digest=b"9"), job("c", key="k", digest=b"2")])
    await add(store, job("d", key="free", digest=b"8"))


async def test_an_id_that_is_stored_does_not_take_another_key(store: FullStore) -> None:
    await add(store, job("a"))
    await store.add([job("a", key="k")])
    await add(store, job("b", key="k"))


@pytest.mark.parametrize("end", ENDINGS)
async def test_remembered_after_the_end(
    store: FullStore, clock: FakeClock, place: Place, end: str
) -> None:
    running = await start(store, job("a", key="k", keep_key=100, digest=b"1"))
    clock.advance(50)
    await store.settle([ENDINGS[end](running)])
    clock.advance(99.5)
    store = await place.reopen()
    assert list(await store.add([job(key="k", digest=b"1")])) == [Added("a", created=False)]
    with pytest.raises(KeyConflict):
        await store.add([job(key="k", digest=b"2")])
    clock.advance(0.5)
    await add(store, job("b", key="k", digest=b"2"))
    assert list(await store.add([job(key="k", digest=b"2")])) == [Added("b", created=False)]


async def test_remembered_for_a_day_if_nothing_is_said(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", key="k"))
    await store.settle([done(running)])
    clock.advance(DAY - 1)
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    clock.advance(1)
    await add(store, job("b", key="k"))


@pytest.mark.parametrize("end", ENDINGS)
async def test_not_remembered_at_all(store: FullStore, end: str) -> None:
    running = await start(store, job("a", key="k", keep_key=0))
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    await store.settle([ENDINGS[end](running)])
    await add(store, job("b", key="k", digest=b"2"))


async def test_the_old_holder_does_not_touch_the_new_ones_key(
    store: FullStore, clock: FakeClock
) -> None:
    running = await start(store, job("a", key="k", keep_key=10, keep=50))
    await store.settle([done(running)])
    clock.advance(20)
    await add(store, job("b", key="k"))
    clock.advance(100)
    await store.prune(100)
    assert list(await store.get(["a"])) == [None]
    assert list(await store.add([job(key="k")])) == [Added("b", created=False)]


async def test_adding_the_old_holder_again_changes_nothing(
    store: FullStore, clock: FakeClock
) -> None:
    """The answer to the first call may have been lost for so long."""
    old = job("a", key="k", keep_key=10, digest=b"1")
    running = await start(store, old)
    await store.settle([done(running)])
    clock.advance(20)
    await add(store, job("b", key="k", digest=b"2"))
    assert list(await store.add([old])) == [Added("a", created=False)]
    same = job("c", key="k", digest=b"2")
    assert list(await store.add([old, same])) == [
        Added("a", created=False),
        Added("b", created=False),
    ]


async def test_the_key_outlives_a_job_that_is_not_kept(store: FullStore, clock: FakeClock) -> None:
    [a, b] = await start(
        store, job("a", key="ka", keep=0, keep_key=100), job("b", key="kb", keep=10, keep_key=100)
    )
    await store.settle([done(a), done(b)])
    clock.advance(50)
    await store.prune(100)
    assert list(await store.get(["a", "b"])) == [None, None]
    answers = await store.add([job(key="ka"), job(key="kb")])
    assert list(answers) == [Added("a", created=False), Added("b", created=False)]
    clock.advance(50)
    await add(store, job(key="ka"), job(key="kb"))


async def test_the_holder_itself_is_not_stored_twice(store: FullStore, clock: FakeClock) -> None:
    """An add is repeated when its answer was lost; the job may be over and gone by then."""
    gone = job("a", key="k", keep=0, keep_key=100, digest=b"1")
    running = await start(store, gone)
    await store.settle([done(running)])
    assert list(await store.add([gone])) == [Added("a", created=False)]
    with pytest.raises(KeyConflict):
        await store.add([job("a", key="k", digest=b"2")])
    clock.advance(100)
    await add(store, gone)


async def test_a_pruned_key_is_free(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", key="k", keep_key=10, keep=None))
    await store.settle([done(running)])
    clock.advance(10)
    assert await store.prune(100) == 1
    assert (await get(store, "a")).status is Status.DONE
    await add(store, job("b", key="k"))


async def test_an_expired_job_is_remembered_too(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", key="k", ttl=5, keep_key=100))
    clock.advance(6)
    await store.prune(100)
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    clock.advance(101)
    await add(store, job("b", key="k"))


async def test_a_cancelled_job_is_remembered_too(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", key="k", keep_key=100))
    await store.cancel(["a"])
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    clock.advance(100)
    await add(store, job("b", key="k"))


async def test_fifty_at_once_make_one_job(store: FullStore, place: Place) -> None:
    handles = [store, await place.open(), await place.open()]
    calls = (handles[n % 3].add([job(key="k")]) for n in range(50))
    answers = [answer for [answer] in await asyncio.gather(*calls)]
    assert len({answer.id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1
    assert len(await take(store)) == 1


async def test_many_keys_in_a_batch(store: FullStore) -> None:
    await add(store, *(job(f"a{n}", key=f"k{n}") for n in range(0, 600, 2)))
    answers = await store.add([job(f"b{n}", key=f"k{n}") for n in range(600)])
    assert [answer.created for answer in answers] == [n % 2 == 1 for n in range(600)]
    assert [answer.id for answer in answers] == [f"{'ab'[n % 2]}{n}" for n in range(600)]
