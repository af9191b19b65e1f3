"""`claim`: which jobs, in which order, and what a claim makes of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.job import Status, cancelled, dead, done, give_back

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_a_claim_runs_the_job(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", payload=b"[1]"))
    clock.advance(3)
    [claim] = await take(store, worker="w7")
    assert claim.job.status is Status.RUNNING
    assert claim.job.attempt == 1
    assert claim.job.started_at == clock.now()
    assert claim.job.worker == "w7"
    assert claim.job.payload == b"[1]"
    assert claim.job == await get(store, "a")


async def test_receipts_are_random(store: FullStore) -> None:
    receipts = []
    await add(store, *(job() for _ in range(50)))
    for _ in range(25):
        claims = await take(store, 2)
        assert len({claim.receipt for claim in claims}) == 2
        receipts.append(claims[0].receipt)
    assert len(set(receipts)) == 25
    for position in range(16):
        assert len({receipt[position] for receipt in receipts}) > 12, "a counter?"


async def test_the_same_job_never_gets_the_same_receipt(store: FullStore) -> None:
    await add(store, job())
    receipts = set()
    for _ in range(20):
        [claim] = await take(store)
        receipts.add(claim.receipt)
        await store.settle([give_back(claim)])
    assert len(receipts) == 20


async def test_a_running_job_is_not_given_out_again(store: FullStore, place: Place) -> None:
    await add(store, job("a"), job("b"))
    assert ids(await take(store, 1)) == ["a"]
    assert ids(await take(await place.open())) == ["b"]
    assert await take(store) == []
    assert await take(await place.open()) == []


async def test_two_claim_at_once(store: FullStore, place: Place) -> None:
    await add(store, *(job() for _ in range(200)))
    handles = [store, await place.open(), await place.open()]
    found = await asyncio.gather(*(take(handles[n % 3], 9) for n in range(30)))
    claimed = [id_ for claims in found for id_ in ids(claims)]
    assert len(claimed) == len(set(claimed)) == 200


@pytest.mark.parametrize("limit", [0, -1])
async def test_no_limit_no_claims(store: FullStore, limit: int) -> None:
    await add(store, job())
    assert await take(store, limit) == []
    assert len(await take(store)) == 1


async def test_first_in_first_out(store: FullStore) -> None:
    order = await add(store, job("c"), job("a"), job("d"), job("b"))
    assert ids(await take(store, 3)) + ids(await take(store, 3)) == order


async def test_order_survives_reopening(store: FullStore, place: Place) -> None:
    await add(store, job("z"), job("y"), job("x", priority=1))
    store = await place.reopen()
    await add(store, job("a"))
    assert ids(await take(store)) == ["x", "z", "y", "a"]


async def test_higher_priority_first(store: FullStore) -> None:
    await add(store, job("low", priority=-100), job("normal"), job("high", priority=100))
    await add(store, job("second", priority=100), job("nine", priority=9), job("ten", priority=10))
    assert ids(await take(store)) == ["high", "second", "ten", "nine", "normal", "low"]


async def test_a_limit_takes_the_first_in_order(store: FullStore) -> None:
    """Not the first that were added, put into order afterwards."""
    await add(store, job("low", priority=-1), job("other", task="t2"), job("ranked", rank=b"a"))
    await add(store, job("normal"), job("high", priority=1), job("highest", priority=2, task="t2"))
    found = [ids(await take(store, 1, tasks=(None, "t2"))) for _ in range(6)]
    order = ["highest", "high", "other", "normal", "ranked", "low"]
    assert found == [[id] for id in order]


async def test_lower_rank_first_compared_as_bytes(store: FullStore) -> None:
    ranks = [b"\xff", b"b", b"", b"a\x00", b"a", b"\x00"]
    await add(store, *(job(f"r{rank.hex()}", rank=rank) for rank in ranks))
    assert ids(await take(store)) == ["r", "r00", "r61", "r6100", "r62", "rff"]


async def test_priority_before_rank_before_time_of_adding(store: FullStore) -> None:
    await add(store, job("1", rank=b"z", priority=1), job("2", rank=b"a"), job("3", rank=b"z"))
    await add(store, job("4", rank=b"a"), job("5", rank=b"a", priority=1))
    assert ids(await take(store)) == ["5", "1", "2", "4", "3"]


async def test_newest_first(store: FullStore) -> None:
    await add(store, job("1"), job("2"), job("3"))
    assert ids(await take(store, 2, newest=True)) == ["3", "2"]
    await add(store, job("4"))
    assert ids(await take(store, 1)) == ["1"]
    assert ids(await take(store, newest=True)) == ["4"]


async def test_newest_first_goes_by_adding_not_by_time(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("1", delay=5), job("2"), job("3", delay=1), job("later", delay=90))
    clock.advance(10)
    assert ids(await take(store, newest=True)) == ["3", "2", "1"]


async def test_newest_first_among_the_most_urgent(store: FullStore) -> None:
    await add(store, job("1"), job("urgent 1", priority=5), job("2"), job("urgent 2", priority=5))
    assert ids(await take(store, newest=True)) == ["urgent 2", "urgent 1", "2", "1"]


async def test_newest_first_over_several_queues(store: FullStore) -> None:
    await add(store, *(job(f"{n}", queue=("a", "b")[n % 2]) for n in range(6)))
    for expected in (["5", "4"], ["3", "2"], ["1", "0"]):
        assert ids(await take(store, 2, newest=True, queues=["a", "b"])) == expected


async def test_newest_first_within_a_rank(store: FullStore) -> None:
    await add(store, job("b1", rank=b"b"), job("a1", rank=b"a"), job("b2", rank=b"b"))
    await add(store, job("a2", rank=b"a", queue="other"), job("z", priority=1, rank=b"z"))
    claims = await take(store, newest=True, queues=["default", "other"])
    assert ids(claims) == ["z", "a2", "a1", "b2", "b1"]


async def test_newest_first_after_it_was_given_back(store: FullStore) -> None:
    await add(store, job("1"), job("2"), job("3"))
    [three, two] = await take(store, 2, newest=True)
    await store.settle([give_back(three), give_back(two)])
    assert ids(await take(store, newest=True)) == ["3", "2", "1"]


async def test_only_the_queues_and_tasks_asked_for(store: FullStore) -> None:
    await add(store, job("a1", queue="a", task="t1"), job("a2", queue="a", task="t2"))
    await add(store, job("b1", queue="b", task="t1"), job("item", queue="b"))
    assert ids(await take(store, queues=["a"], tasks=["t1"])) == ["a1"]
    assert ids(await take(store, queues=["b"], tasks=[None])) == ["item"]
    assert ids(await take(store, queues=["b"], tasks=["t2", "unknown"])) == []
    assert ids(await take(store, queues=["none"], tasks=["t1", "t2", None])) == []
    assert ids(await take(store, queues=["a", "b"], tasks=["t1", "t2"])) == ["a2", "b1"]


async def test_nothing_asked_for(store: FullStore) -> None:
    await add(store, job())
    assert await take(store, queues=[]) == []
    assert await take(store, tasks=[]) == []


async def test_names_given_twice_give_nothing_twice(store: FullStore) -> None:
    await add(store, job("a"), job("b"))
    claims = await take(store, queues=["default", "default"], tasks=[None, None])
    assert ids(claims) == ["a", "b"]


async def test_one_order_over_several_queues_and_tasks(store: FullStore) -> None:
    await add(store, job("1", queue="b", task="t2"), job("2", queue="a", task="t1"))
    await add(store, job("3", queue="b", task="t1"), job("4", queue="a", task="t2", priority=1))
    await add(store, job("5", queue="a", task="t1", rank=b"\x01"), job("6", queue="b", task="t2"))
    claims = await take(store, 4, queues=["a", "b"], tasks=["t1", "t2"])
    assert ids(claims) == ["4", "1", "2", "3"]
    claims = await take(store, 4, queues=["a", "b"], tasks=["t1", "t2"])
    assert ids(claims) == ["6", "5"]


async def test_an_unknown_task_stays_queued_and_holds_nobody_up(store: FullStore) -> None:
    await add(store, *(job(task="new") for _ in range(50)), job("known", task="old"))
    assert ids(await take(store, 1, tasks=["old"])) == ["known"]
    depth = await store.depth("default")
    assert (depth.ready, depth.running) == (50, 1)


async def test_what_is_given_back_keeps_its_place(store: FullStore, place: Place) -> None:
    await add(store, job("1"), job("2"), job("3"), job("0", priority=1))
    [first, second] = await take(store, 2)
    await store.settle([give_back(second), give_back(first)])
    store = await place.reopen()
    assert ids(await take(store)) == ["0", "1", "2", "3"]


async def test_every_start_counts_as_an_attempt(store: FullStore) -> None:
    running = await start(store, job("a"))
    for attempt in (2, 3):
        await store.settle([give_back(running)])
        [running] = await take(store)
        assert running.job.attempt == attempt
    await store.settle([done(running)])
    assert (await get(store, "a")).attempt == 3


async def test_ended_jobs_are_not_given_out(store: FullStore) -> None:
    [a, b, c] = await start(store, job(), job(), job())
    await store.settle([done(a), dead(b, OOPS), cancelled(c)])
    assert await take(store) == []
    assert await take(store, newest=True) == []


async def test_expired_jobs_are_never_given_out(store: FullStore, clock: FakeClock) -> None:
    await add(store, job("a", ttl=10), job("b", ttl=5), job("c"), job("d", ttl=5, delay=7))
    clock.advance(5)
    assert ids(await take(store)) == ["a", "c"]
    clock.advance(10)
    assert await take(store) == []
    await store.prune(100)
    for id_ in ("b", "d"):
        ended = await get(store, id_)
        assert ended.status is Status.CANCELLED
        assert ended.failure is not None
        assert ended.failure.kind == "expired"
        assert ended.finished_at is not None
        assert clock.now() - 10 <= ended.finished_at <= clock.now()


async def test_a_job_that_began_in_time_does_not_expire(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a", ttl=5))
    clock.advance(10)
    await store.prune(100)
    assert (await get(store, "a")).status is Status.RUNNING
    assert list(await store.settle([done(running)])) == []
