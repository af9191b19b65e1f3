"""A held key: what ``on_repeat`` makes of the next call, and keys held only in the queue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.errors import KeyConflict, KeyRepeated, QueueFull
from outlast.job import Added, Job, Status, done, give_back, retry
from outlast.store import Feature

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


@pytest.fixture(autouse=True)
def _supported(store: FullStore) -> None:
    if Feature.REPEATS not in store.features:
        pytest.skip("this store answers a repeat with the first job only")


# -- raise


async def test_raise_names_the_holder_and_stores_none(store: FullStore) -> None:
    await add(store, job("a", key="k"))
    with pytest.raises(KeyRepeated) as caught:
        await store.add([job("x"), job("b", key="k", on_repeat="raise")])
    assert caught.value.id == "a"
    assert list(await store.get(["x", "b"])) == [None, None]
    await add(store, job("b", key="other", on_repeat="raise"))


async def test_raise_leaves_nothing_of_a_queue_that_was_new(store: FullStore) -> None:
    await add(store, job("a", key="k"))
    with pytest.raises(KeyRepeated):
        await store.add([job("x", queue="new"), job("b", key="k", on_repeat="raise")])
    await add(store, job("y", queue="new"))
    assert ids(await take(store, queues=["new"])) == ["y"]


async def test_raise_as_long_as_the_key_is_remembered(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", key="k", keep_key=100))
    for _ in range(2):
        with pytest.raises(KeyRepeated):
            await store.add([job(key="k", on_repeat="raise")])
        await store.settle([done(running)])
    clock.advance(100)
    await add(store, job(key="k", on_repeat="raise"))


@pytest.mark.parametrize("policy", ["raise", "replace", "debounce", "throttle"])
async def test_the_same_id_is_no_repeat(store: FullStore, policy: str) -> None:
    """The answer to an add was lost, and it is repeated."""
    one = job("a", key="k", on_repeat=policy, delay=5)
    await add(store, one)
    assert list(await store.add([one])) == [Added("a", created=False)]
    assert (await get(store, "a")).status is Status.QUEUED


# -- replace


async def test_replace_cancels_the_queued_one(store: FullStore, place: Place) -> None:
    await add(store, job("a", key="k", digest=b"1"))
    await add(store, job("b", key="k", digest=b"2", on_repeat="replace"))
    first = await get(store, "a")
    assert first.status is Status.CANCELLED
    assert first.failure is not None
    assert "replaced by job b" in first.failure.message
    store = await place.reopen()
    assert list(await store.add([job(key="k", digest=b"2")])) == [Added("b", created=False)]
    assert ids(await take(store)) == ["b"]
    assert (await store.depth("default")).live == 1


async def test_replace_leaves_what_has_started(store: FullStore) -> None:
    running = await start(store, job("a", key="k", digest=b"1", max_attempts=3))
    for _ in range(2):
        same = job(key="k", digest=b"1", on_repeat="replace")
        assert list(await store.add([same])) == [Added("a", created=False)]
        with pytest.raises(KeyConflict):
            await store.add([job(key="k", digest=b"2", on_repeat="replace")])
        await store.settle([retry(running, 60, OOPS)])
    assert (await store.depth("default")).live == 1


async def test_replace_again_and_again(store: FullStore) -> None:
    for n in range(5):
        await add(store, job(f"j{n}", key="k", digest=bytes([n]), on_repeat="replace"))
    assert ids(await take(store)) == ["j4"]
    assert (await store.depth("default")).cancelled == 4


async def test_replace_twice_in_one_batch(store: FullStore) -> None:
    jobs = [job(f"j{n}", key="k", digest=bytes([n]), on_repeat="replace") for n in range(3)]
    assert list(await store.add(jobs)) == [Added(f"j{n}") for n in range(3)]
    assert ids(await take(store)) == ["j2"]


async def test_replace_needs_no_more_room(store: FullStore) -> None:
    await store.add([job("a", key="k"), job("b")], 2)
    answers = await store.add([job("c", key="k", on_repeat="replace")], 2)
    assert list(answers) == [Added("c")]
    with pytest.raises(QueueFull):
        await store.add([job("d", key="x", on_repeat="replace")], 2)
    assert ids(await take(store)) == ["b", "c"]


async def test_a_conflict_undoes_what_was_replaced(store: FullStore) -> None:
    await add(store, job("a", key="k", digest=b"1"), job("b", key="l", digest=b"1"))
    with pytest.raises(KeyConflict):
        await store.add(
            [job("c", key="k", digest=b"2", on_repeat="replace"), job("d", key="l", digest=b"2")]
        )
    assert (await get(store, "a")).status is Status.QUEUED
    assert list(await store.get(["c", "d"])) == [None, None]
    assert list(await store.add([job(key="k", digest=b"1")])) == [Added("a", created=False)]
    depth = await store.depth("default")
    assert (depth.ready, depth.cancelled) == (2, 0)
    assert ids(await take(store)) == ["a", "b"]


# -- debounce and throttle


async def test_debounce_gives_the_holder_arguments_and_time(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    await add(store, job("a", key="k", digest=b"1", payload=b"1", delay=10, queue="q"))
    clock.advance(9)
    again = job(
        key="k", digest=b"2", payload=b"2", delay=10, on_repeat="debounce",
        headers={"n": "2"}, timeout=7.0,
    )  # fmt: skip
    assert list(await store.add([again])) == [Added("a", created=False)]
    store = await place.reopen()
    clock.advance(9)
    assert await take(store, queues=["q"]) == []
    clock.advance(1)
    [claim] = await take(store, queues=["q"])
    found = claim.job
    assert (found.id, found.payload, found.digest, found.queue) == ("a", b"2", b"2", "q")
    assert (dict(found.headers), found.timeout) == ({"n": "2"}, 7.0)


async def test_throttle_leaves_the_time(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", key="k", digest=b"1", payload=b"1", delay=10))
    clock.advance(9)
    again = job(key="k", digest=b"2", payload=b"2", delay=10, on_repeat="throttle")
    assert list(await store.add([again])) == [Added("a", created=False)]
    clock.advance(1)
    [claim] = await take(store)
    assert (claim.job.id, claim.job.payload) == ("a", b"2")


@pytest.mark.parametrize("policy", ["debounce", "throttle"])
async def test_what_has_started_keeps_its_arguments(store: FullStore, policy: str) -> None:
    running = await start(store, job("a", key="k", digest=b"1", payload=b"1"))
    with pytest.raises(KeyConflict):
        await store.add([job(key="k", digest=b"2", payload=b"2", on_repeat=policy)])
    await store.settle([give_back(running)])
    with pytest.raises(KeyConflict):
        await store.add([job(key="k", digest=b"2", payload=b"2", on_repeat=policy)])
    assert (await get(store, "a")).payload == b"1"


async def test_debounce_to_now(store: FullStore) -> None:
    await add(store, job("a", key="k", delay=1000))
    await store.add([job(key="k", on_repeat="debounce")])
    depth = await store.depth("default")
    assert (depth.ready, depth.delayed) == (1, 0)
    assert ids(await take(store)) == ["a"]


async def test_debounce_lets_the_rest_of_a_lane_go_on(store: FullStore) -> None:
    await add(store, job("a", key="k", lane="l"), job("b", lane="l"))
    [claim] = await take(store, 1)
    assert claim.job.id == "a"
    await store.settle([give_back(claim, started=False)])
    await store.add([job(key="k", on_repeat="debounce", delay=1000)])
    [claim] = await take(store)
    assert claim.job.id == "b"


async def test_debounce_twice_in_one_batch(store: FullStore, clock: FakeClock) -> None:
    jobs = [
        job(f"j{n}", key="k", digest=bytes([n]), payload=b"%d" % n, delay=n, on_repeat="debounce")
        for n in (1, 2, 3)
    ]
    assert [(a.id, a.created) for a in await store.add(jobs)] == [
        ("j1", True), ("j1", False), ("j1", False)
    ]  # fmt: skip
    clock.advance(2.5)
    assert await take(store) == []
    clock.advance(0.5)
    [claim] = await take(store)
    assert claim.job.payload == b"3"


# -- held only in the queue


@pytest.mark.parametrize("policy", ["first", "raise", "replace", "debounce", "throttle"])
async def test_a_key_of_the_queue_is_free_at_the_claim(store: FullStore, policy: str) -> None:
    def call(id: str, mark: bytes) -> Job:
        return job(id, key="k", digest=mark, key_queued=True, keep_key=0, on_repeat=policy)

    await store.add([call("a", b"1")])
    [running] = await take(store)
    assert list(await store.add([call("b", b"2")])) == [Added("b")]
    await store.settle([give_back(running)])
    # The first one does not take its key again, nor does its claim or its end free the other one's.
    held = [Added("b", created=False)]
    assert list(await store.add([job(key="k", digest=b"2")])) == held
    [running] = await take(store, 1)
    assert running.job.id == "a"
    assert list(await store.add([job(key="k", digest=b"2")])) == held
    await store.settle([done(running)])
    assert list(await store.add([job(key="k", digest=b"2")])) == held
    [last] = await take(store)
    assert last.job.id == "b"
    await store.settle([done(last)])
    await add(store, job("c", key="k", digest=b"3"))


async def test_a_key_of_the_queue_is_free_when_its_job_is_cancelled(store: FullStore) -> None:
    await add(store, job("a", key="k", key_queued=True, keep_key=0))
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]
    await store.cancel(["a"])
    await add(store, job("b", key="k", key_queued=True, keep_key=0))
    await store.cancel(["b"])
    assert list(await store.revive(["a"])) == [True]
    assert list(await store.add([job(key="k")])) == [Added("a", created=False)]


@pytest.mark.parametrize("policy", ["first", "replace", "debounce"])
async def test_fifty_at_once_leave_one_to_run(store: FullStore, place: Place, policy: str) -> None:
    handles = [store, await place.open(), await place.open()]
    calls = (handles[n % 3].add([job(key="k", on_repeat=policy)]) for n in range(50))
    answers = [answer for [answer] in await asyncio.gather(*calls)]
    ran = ids(await take(store))
    assert len(ran) == 1
    holders = {answer.id for answer in answers}
    assert ran[0] in holders
    assert len(holders) == (50 if policy == "replace" else 1)
