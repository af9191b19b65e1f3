"""Lanes: one job at a time, in order, over all workers, and nothing to unlock after a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.job import Death, Status, cancelled, dead, done, give_back, retry

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock

ENDINGS: dict[str, Any] = {
    "done": lambda claim: done(claim),
    "dead": lambda claim: dead(claim, OOPS),
    "cancelled": lambda claim: cancelled(claim),
}


async def test_one_at_a_time_in_order(store: FullStore, place: Place) -> None:
    await add(store, *(job(f"{n}", lane="l") for n in range(3)))
    other = await place.open()
    for n in range(3):
        [running] = await take(store)
        assert running.job.id == f"{n}"
        assert await take(store) == []
        assert await take(other, worker="w2") == []
        await other.settle([done(running)])
    assert await take(store) == []


@pytest.mark.parametrize("newest", [False, True])
async def test_never_two_in_one_claim(store: FullStore, newest: bool) -> None:
    await add(store, *(job(lane=f"l{n % 3}") for n in range(30)))
    claims = await take(store, 10, newest=newest)
    assert sorted(claim.job.lane or "" for claim in claims) == ["l0", "l1", "l2"]


async def test_others_pass_a_held_lane(store: FullStore) -> None:
    await add(store, *(job(f"lane {n}", lane="l") for n in range(60)))
    await add(store, job("x"), job("y", lane="m"), job("z"))
    assert ids(await take(store, 3)) == ["lane 0", "x", "y"]
    assert ids(await take(store, 3)) == ["z"]


async def test_others_pass_a_held_lane_newest_first(store: FullStore) -> None:
    await add(store, job("x"), job("y", lane="m"), job("z"))
    await add(store, *(job(f"lane {n}", lane="l") for n in range(60)))
    assert ids(await take(store, 3, newest=True)) == ["lane 59", "z", "y"]
    assert ids(await take(store, 3, newest=True)) == ["x"]


@pytest.mark.parametrize("end", ENDINGS)
async def test_the_next_one_comes_after_the_end(store: FullStore, end: str) -> None:
    await add(store, job("1", lane="l"), job("2", lane="l"), job("3", lane="l"))
    for n in ("1", "2", "3"):
        [running] = await take(store)
        assert running.job.id == n
        await store.settle([ENDINGS[end](running)])


async def test_one_lane_over_queues_and_tasks(store: FullStore) -> None:
    await add(store, job("1", lane="l", queue="a", task="t1"), job("2", lane="l", queue="b"))
    await add(store, job("3", lane="l", queue="a", task="t2"))
    names: dict[str, Any] = {"queues": ["a", "b"], "tasks": ["t1", "t2", None]}
    for n in ("1", "2", "3"):
        [running] = await take(store, **names)
        assert running.job.id == n
        assert await take(store, **names) == []
        assert await take(store, queues=["b"]) == []
        await store.settle([done(running)])


async def test_who_does_not_know_the_first_one_may_take_the_next(store: FullStore) -> None:
    await add(store, job("1", lane="l", task="unknown"), job("2", lane="l", task="known"))
    [running] = await take(store, tasks=["known"])
    assert running.job.id == "2"
    assert await take(store, tasks=["unknown"]) == []
    await store.settle([done(running)])
    assert ids(await take(store, tasks=["unknown"])) == ["1"]


async def test_the_next_one_of_each_line_comes_when_the_lane_is_free(store: FullStore) -> None:
    await add(store, *(job(f"{n}", lane="l", task=f"t{n % 2}") for n in range(6)))
    await add(store, job("elsewhere", lane="l", queue="other", task="t1"))
    everything: dict[str, Any] = {"queues": ["default", "other"], "tasks": ["t0", "t1"]}
    [running] = await take(store, **everything)
    assert running.job.id == "0"
    assert await take(store, **everything) == []
    await store.settle([done(running)])
    for queue, task, expected in (
        ("other", "t1", "elsewhere"),
        ("default", "t0", "2"),
        ("default", "t1", "1"),
        ("default", "t1", "3"),
        ("default", "t0", "4"),
        ("default", "t1", "5"),
    ):
        [running] = await take(store, queues=[queue], tasks=[task])
        assert running.job.id == expected
        assert await take(store, **everything) == []
        await store.settle([done(running)])
    assert await take(store, **everything) == []


async def test_a_paused_queue_does_not_hold_a_free_lane(store: FullStore) -> None:
    await add(store, job("1", lane="l"), job("2", lane="l"), job("3", lane="l", queue="other"))
    queues = ["default", "other"]
    [running] = await take(store, queues=queues)
    assert await take(store, queues=queues) == []
    await store.settle([done(running)])
    await store.pause("default")
    assert ids(await take(store, queues=queues)) == ["3"]


async def test_order_in_the_lane_is_claim_order(store: FullStore, clock: FakeClock) -> None:
    first = await start(store, job("first", lane="l"))
    await add(store, job("low", lane="l"), job("high", lane="l", priority=5))
    await add(store, job("due", lane="l", delay=1), job("far", lane="l", delay=1000))
    assert await take(store) == []
    clock.advance(1)
    running = first
    for expected in ("high", "due", "low"):
        await store.settle([done(running)])
        [running] = await take(store)
        assert running.job.id == expected
    await store.settle([done(running)])
    assert await take(store) == []
    clock.advance(1000)
    assert ids(await take(store)) == ["far"]


async def test_waiting_for_its_retry_it_holds_the_lane(
    store: FullStore, clock: FakeClock, place: Place
) -> None:
    await add(store, job("1", lane="l"), job("2", lane="l"), job("x"))
    [one, x] = await take(store)
    await store.settle([retry(one, 10, OOPS), done(x)])
    store = await place.reopen()
    assert await take(store) == []
    clock.advance(10)
    [one] = await take(store)
    assert (one.job.id, one.job.attempt) == ("1", 2)
    assert await take(store) == []
    await store.settle([done(one)])
    assert ids(await take(store)) == ["2"]


async def test_snoozed_it_holds_the_lane(store: FullStore, clock: FakeClock) -> None:
    one = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l", priority=50))
    await store.settle([give_back(one, 10)])
    assert await take(store) == []
    clock.advance(10)
    assert ids(await take(store)) == ["1"]


async def test_given_back_it_comes_before_more_urgent_ones(store: FullStore) -> None:
    one = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l", priority=50))
    await store.settle([give_back(one)])
    [one] = await take(store)
    assert one.job.id == "1"
    await store.settle([done(one)])
    assert ids(await take(store)) == ["2"]


async def test_what_never_began_does_not_hold_the_lane(store: FullStore) -> None:
    one = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l", priority=50))
    await store.settle([give_back(one, started=False)])
    [two] = await take(store)
    assert two.job.id == "2"
    await store.settle([done(two)])
    assert ids(await take(store)) == ["1"]


async def test_what_was_delayed_before_it_began_does_not_hold_the_lane(store: FullStore) -> None:
    one = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l"))
    await store.settle([give_back(one, 100, started=False)])
    assert ids(await take(store)) == ["2"]


async def test_a_crash_leaves_no_lock(store: FullStore, clock: FakeClock, place: Place) -> None:
    await start(store, job("1", lane="l"), lease=10)
    await add(store, job("2", lane="l"), job("3", lane="l"))
    store = await place.reopen()
    assert await take(store) == []
    clock.advance(11)
    assert await store.recover(10) == 1
    [one] = await take(store)
    assert one.job.id == "1"
    assert await take(store) == []
    await store.settle([done(one)])
    [two] = await take(store)
    assert two.job.id == "2"


async def test_a_buried_job_frees_its_lane(store: FullStore) -> None:
    await start(store, job("1", lane="l", max_crashes=1), worker="doomed")
    await add(store, job("2", lane="l"))
    await store.recover_worker("doomed", Death(alone=True))
    assert (await get(store, "1")).status is Status.DEAD
    assert ids(await take(store)) == ["2"]


async def test_cancelling_the_one_that_waits_for_its_retry_frees_the_lane(
    store: FullStore,
) -> None:
    one = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l"))
    await store.settle([retry(one, 1000, OOPS)])
    assert await take(store) == []
    assert list(await store.cancel(["1"])) == ["cancelled"]
    assert ids(await take(store)) == ["2"]


async def test_expiry_of_the_one_that_waits_for_its_retry_frees_the_lane(
    store: FullStore, clock: FakeClock
) -> None:
    one = await start(store, job("1", lane="l", ttl=50))
    await add(store, job("2", lane="l"))
    await store.settle([retry(one, 1000, OOPS)])
    assert await take(store) == []
    clock.advance(50)
    await store.prune(100)
    assert ids(await take(store)) == ["2"]


async def test_purging_the_one_that_waits_for_its_retry_frees_the_lane(store: FullStore) -> None:
    one = await start(store, job("1", lane="l", queue="other"))
    await add(store, job("2", lane="l"))
    await store.settle([retry(one, 1000, OOPS)])
    assert await take(store) == []
    assert await store.purge("other", [Status.QUEUED]) == 1
    assert ids(await take(store)) == ["2"]


async def test_cancelled_in_the_middle_of_a_lane(store: FullStore) -> None:
    one = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l"), job("3", lane="l"))
    assert await take(store) == []
    await store.cancel(["2"])
    await store.settle([done(one)])
    assert ids(await take(store)) == ["3"]


async def test_the_next_of_the_lane_cancelled_after_the_lane_became_free(
    store: FullStore,
) -> None:
    one = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l"), job("3", lane="l"))
    assert await take(store) == []
    await store.settle([done(one)])
    await store.cancel(["2"])
    assert ids(await take(store)) == ["3"]


async def test_revived_jobs_keep_to_their_lane(store: FullStore) -> None:
    [one, two, three] = [job(f"{n}", lane="l", max_crashes=1) for n in (1, 2, 3)]
    await add(store, one, two, three)
    for _ in range(2):
        [running] = await take(store)
        await store.settle([dead(running, OOPS)])
    [running] = await take(store)
    assert running.job.id == "3"
    assert list(await store.revive(["1", "2"])) == [True, True]
    assert await take(store) == []
    await store.settle([done(running)])
    seen = []
    for _ in range(2):
        [running] = await take(store)
        seen.append(running.job.id)
        assert await take(store) == []
        await store.settle([done(running)])
    assert sorted(seen) == ["1", "2"]


async def test_a_lane_is_held_by_none_but_its_own_jobs(store: FullStore) -> None:
    await start(store, job("plain"), job("1", lane="l"))
    await add(store, job("2", lane="m"), job("3", lane="l"))
    assert ids(await take(store, 1)) == ["2"]
    assert ids(await take(store)) == []


async def test_the_next_of_a_lane_is_of_the_same_namespace(store: FullStore, place: Place) -> None:
    other = await place.open("other")
    await start(other, job("a", lane="l"))
    await add(other, job("b", lane="l"))
    assert ids(await take(other)) == []
    mine = await start(store, job("1", lane="l"))
    await add(store, job("2", lane="l"))
    assert ids(await take(store)) == []
    await store.settle([done(mine)])
    assert ids(await take(store)) == ["2"]
    assert ids(await take(other)) == []


async def test_lanes_are_of_one_namespace(store: FullStore, place: Place) -> None:
    await start(store, job("1", lane="l"))
    other = await place.open("other")
    await add(other, job("2", lane="l"))
    assert ids(await take(other)) == ["2"]


async def test_what_follows_may_be_of_the_same_lane(store: FullStore) -> None:
    one = await start(store, job("1", lane="l"))
    await store.settle([done(one, None, (job("2", lane="l"), job("3", lane="l")))])
    assert ids(await take(store)) == ["2"]


async def test_long_lanes(store: FullStore) -> None:
    await add(store, *(job(f"{n:04}", lane=f"l{n % 4}") for n in range(400)))
    order = []
    while claims := await take(store, 100):
        assert len(claims) == 4
        order += ids(claims)
        await store.settle([done(claim) for claim in claims])
    assert order == [f"{n:04}" for n in range(400)]


async def test_who_waited_behind_it_goes_on_when_it_goes_back_for_later_unstarted(
    store: FullStore,
) -> None:
    await add(store, job("1", lane="l"), job("2", lane="l"))
    [one] = await take(store)
    assert await take(store) == [], "the second has been passed over"
    await store.settle([give_back(one, 100, started=False)])
    assert ids(await take(store)) == ["2"]
