"""`settle`: each verdict's effect, and the receipt that every one of them needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from tests.conformance.steps import OOPS, add, get, ids, job, start, take

from outlast.errors import ConfigurationError
from outlast.job import (
    DAY,
    Claim,
    Death,
    Failure,
    Lost,
    Status,
    Verdict,
    cancelled,
    dead,
    done,
    give_back,
    retry,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock

CRASH = Failure(kind="crash", message="gone", signal=9)

VERDICTS: dict[str, Callable[[Claim], Verdict]] = {
    "done": lambda claim: done(claim, b"1"),
    "retry": lambda claim: retry(claim, 5, OOPS),
    "give_back": lambda claim: give_back(claim),
    "dead": lambda claim: dead(claim, OOPS),
    "cancelled": lambda claim: cancelled(claim),
}
every_verdict = pytest.mark.parametrize("kind", VERDICTS)


async def test_done(store: FullStore, clock: FakeClock, place: Place) -> None:
    running = await start(store, job("a"))
    clock.advance(2)
    assert list(await store.settle([done(running, b'"\x00ok"')])) == []
    ended = await get(await place.reopen(), "a")
    assert ended.status is Status.DONE
    assert ended.result == b'"\x00ok"'
    assert ended.finished_at == clock.now()
    assert (ended.attempt, ended.failures, ended.crashes) == (1, 0, 0)


async def test_done_without_a_result(store: FullStore) -> None:
    running = await start(store, job("a"))
    await store.settle([done(running)])
    assert (await get(store, "a")).result is None


@pytest.mark.parametrize("keep", [0, 0.0])
async def test_done_and_not_kept(store: FullStore, keep: float) -> None:
    running = await start(store, job("a", keep=keep))
    assert list(await store.settle([done(running)])) == []
    assert list(await store.get(["a"])) == [None]
    assert (await store.depth("default")).done == 0


async def test_retry(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a"))
    clock.advance(2)
    assert list(await store.settle([retry(running, 5, OOPS)])) == []
    queued = await get(store, "a")
    assert queued.status is Status.QUEUED
    assert (queued.attempt, queued.failures, queued.crashes) == (1, 1, 0)
    assert queued.run_at == clock.now() + 5
    assert queued.failure == OOPS
    assert queued.finished_at is None
    clock.advance(5)
    [again] = await take(store)
    assert (again.job.attempt, again.job.failures, again.job.failure) == (2, 1, OOPS)


async def test_give_back(store: FullStore) -> None:
    running = await start(store, job("a"))
    assert list(await store.settle([give_back(running)])) == []
    queued = await get(store, "a")
    assert queued.status is Status.QUEUED
    assert (queued.attempt, queued.failures, queued.crashes) == (1, 0, 0)
    assert queued.failure is None
    assert queued.worker is None


async def test_give_back_what_never_started(store: FullStore) -> None:
    running = await start(store, job("a"))
    await store.settle([give_back(running, started=False)])
    assert (await get(store, "a")).attempt == 0
    [again] = await take(store)
    assert again.job.attempt == 1


async def test_dead(store: FullStore, clock: FakeClock, place: Place) -> None:
    running = await start(store, job("a", keep=0))
    clock.advance(2)
    assert list(await store.settle([dead(running, OOPS)])) == []
    ended = await get(await place.reopen(), "a")
    assert ended.status is Status.DEAD
    assert ended.failure == OOPS
    assert (ended.attempt, ended.failures) == (1, 1)
    assert ended.finished_at == clock.now()
    assert ended.result is None


async def test_dead_before_it_started(store: FullStore) -> None:
    running = await start(store, job("a", payload=b"\x00broken"))
    undecodable = Failure(kind="undecodable", message="no JSON")
    await store.settle([dead(running, undecodable, started=False)])
    ended = await get(store, "a")
    assert (ended.status, ended.failures, ended.attempt) == (Status.DEAD, 0, 0)
    assert ended.payload == b"\x00broken"
    assert ended.failure == undecodable


async def test_cancelled(store: FullStore, clock: FakeClock) -> None:
    [a, b] = await start(store, job("a"), job("b"))
    why = Failure(kind="cancelled", message="changed my mind")
    await store.settle([cancelled(a, why), cancelled(b)])
    assert (await get(store, "a")).failure == why
    for id_ in ("a", "b"):
        ended = await get(store, id_)
        assert ended.status is Status.CANCELLED
        assert ended.failures == 0
        assert ended.finished_at == clock.now()


async def test_a_crash_of_its_own_process_counts_as_a_crash(store: FullStore) -> None:
    [a, b] = await start(store, job("a"), job("b"))
    await store.settle([retry(a, 0, CRASH), dead(b, CRASH)])
    for id_ in ("a", "b"):
        stored = await get(store, id_)
        assert (stored.failures, stored.crashes) == (0, 1)
        assert stored.failure == CRASH


async def test_a_failure_comes_back_whole(store: FullStore, place: Place) -> None:
    running = await start(store, job("a"))
    failure = Failure(
        kind="crash", message="m\n\N{SNOWMAN}", type="T", traceback="t", signal=9, exit_code=-9
    )
    await store.settle([dead(running, failure)])
    assert (await get(await place.reopen(), "a")).failure == failure


@every_verdict
async def test_a_wrong_receipt_changes_nothing(store: FullStore, kind: str) -> None:
    running = await start(store, job("a"))
    forged = Claim(running.job, bytes(16))
    assert list(await store.settle([VERDICTS[kind](forged)])) == [Lost(forged, "lost")]
    assert await get(store, "a") == running.job
    assert list(await store.settle([done(running)])) == []


@every_verdict
async def test_a_second_time_changes_nothing(store: FullStore, place: Place, kind: str) -> None:
    running = await start(store, job("a"))
    verdict = VERDICTS[kind](running)
    assert list(await store.settle([verdict])) == []
    [before] = await store.get(["a"])
    assert list(await store.settle([verdict])) == [Lost(running, "lost")]
    assert list(await store.get(["a"])) == [before]
    store = await place.reopen()
    assert list(await store.settle([verdict])) == [Lost(running, "lost")]
    assert list(await store.get(["a"])) == [before]


@every_verdict
async def test_the_next_holder_is_not_disturbed(store: FullStore, kind: str) -> None:
    old = await start(store, job("a"))
    await store.settle([give_back(old)])
    [new] = await take(store, worker="w2")
    assert new.receipt != old.receipt
    assert list(await store.settle([VERDICTS[kind](old)])) == [Lost(old, "lost")]
    assert await get(store, "a") == new.job
    assert list(await store.settle([done(new, b"2")])) == []
    assert (await get(store, "a")).result == b"2"


@every_verdict
async def test_the_next_holder_of_what_is_not_kept_is_not_disturbed(
    store: FullStore, kind: str
) -> None:
    old = await start(store, job("a", keep=0))
    await store.settle([give_back(old)])
    [new] = await take(store, worker="w2")
    assert list(await store.settle([VERDICTS[kind](old)])) == [Lost(old, "lost")]
    assert await get(store, "a") == new.job
    assert list(await store.settle([done(new)])) == []
    assert list(await store.get(["a"])) == [None]


@every_verdict
async def test_a_job_that_is_gone(store: FullStore, kind: str) -> None:
    running = await start(store, job("a", keep=0))
    await store.settle([done(running)])
    assert list(await store.settle([VERDICTS[kind](running)])) == [Lost(running, "lost")]
    assert list(await store.get(["a"])) == [None]


@every_verdict
@pytest.mark.parametrize("second", VERDICTS)
async def test_the_same_claim_twice_in_a_batch(store: FullStore, kind: str, second: str) -> None:
    [running, other] = await start(store, job("a"), job("b"))
    await store.settle([VERDICTS[kind](other)])
    lost = await store.settle([VERDICTS[kind](running), VERDICTS[second](running)])
    assert list(lost) == [Lost(running, "lost")]
    first, alike = await get(store, "a"), await get(store, "b")
    assert first == replace(alike, id="a")


async def test_a_batch_applies_what_holds(store: FullStore) -> None:
    [a, b, c, d] = await start(store, job("a"), job("b"), job("c"), job("d"))
    await store.settle([done(b)])
    forged = Claim(d.job, bytes(16))
    lost = await store.settle([done(a), retry(b, 0, OOPS), dead(c, OOPS), done(forged)])
    assert [each.claim.job.id for each in lost] == ["b", "d"]
    found = [each.status for each in await store.get(["a", "b", "c", "d"]) if each]
    assert found == [Status.DONE, Status.DONE, Status.DEAD, Status.RUNNING]


@pytest.mark.parametrize("keep", [DAY, 0])
async def test_of_many_that_ended_alike_those_held_by_others_stay(
    store: FullStore, keep: float
) -> None:
    names = [f"{n:03}" for n in range(60)]
    mine = await start(store, *[job(name, keep=keep) for name in names])
    # Every third one goes back, and to somebody else.
    await store.settle([give_back(claim) for claim in mine[::3]])
    theirs = await take(store, worker="w2")
    assert ids(theirs) == names[::3]
    lost = await store.settle([done(claim, b"1") for claim in mine])
    assert sorted(ids(lost)) == names[::3]
    assert {each.reason for each in lost} == {"lost"}
    depth = await store.depth("default")
    assert (depth.running, depth.done) == (20, 40 if keep else 0)
    assert list(await store.settle([done(claim, b"2") for claim in theirs])) == []
    depth = await store.depth("default")
    assert (depth.running, depth.done) == (0, 60 if keep else 0)
    found = await store.get(names)
    results = [None if each is None else each.result for each in found]
    assert results == ([b"2", b"1", b"1"] * 20 if keep else [None] * 60)


@pytest.mark.parametrize("keep", [DAY, 0])
async def test_of_many_that_ended_alike_one_is_told_twice_and_its_neighbour_never(
    store: FullStore, keep: float
) -> None:
    """As many as from the first to the last, and yet not all of them."""
    claims = await start(store, *[job(f"{n:02}", keep=keep) for n in range(20)])
    told = [*claims[:9], claims[8], *claims[10:]]
    assert ids(await store.settle([done(claim) for claim in told])) == ["08"]
    assert (await get(store, "09")).status == Status.RUNNING
    depth = await store.depth("default")
    assert (depth.running, depth.done) == (1, 19 if keep else 0)


async def test_a_big_batch(store: FullStore) -> None:
    jobs = [job(f"{n:05}", keep=0 if n % 2 else 60) for n in range(1500)]
    claims = await start(store, *jobs)
    verdicts = [done(c, b"%d" % n) if n % 3 else dead(c, OOPS) for n, c in enumerate(claims)]
    assert list(await store.settle(verdicts)) == []
    depth = await store.depth("default")
    assert (depth.done, depth.dead, depth.running) == (500, 500, 0)
    assert (await get(store, "00004")).result == b"4"


async def test_nothing_to_settle(store: FullStore) -> None:
    assert list(await store.settle([])) == []


async def test_what_follows_is_added_with_it(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a"))
    then = (job("b", priority=3), job("c", delay=5, queue="other"))
    await store.settle([done(running, None, then)])
    assert (await get(store, "b")).priority == 3
    assert (await get(store, "c")).run_at == clock.now() + 5
    assert ids(await take(store)) == ["b"]


async def test_what_follows_is_not_added_without_it(store: FullStore) -> None:
    running = await start(store, job("a"))
    await store.settle([done(running, None, (job("b"),))])
    lost = await store.settle([done(running, None, (job("c"),)), dead(running, OOPS, (job("d"),))])
    assert len(lost) == 2
    assert list(await store.get(["c", "d"])) == [None, None]


async def test_what_follows_may_be_there_already(store: FullStore) -> None:
    await add(store, job("held", key="k", digest=b"1", queue="other"))
    [a, b] = await start(store, job("a"), job("b"))
    follow = (job("new", key="k", digest=b"2"), job("held", payload=b"x"), job("free"))
    assert list(await store.settle([retry(a, 0, OOPS, follow), done(b)])) == []
    assert list(await store.get(["new"])) == [None]
    assert (await get(store, "held")).payload == b"null"
    assert (await get(store, "free")).status is Status.QUEUED
    assert (await get(store, "b")).status is Status.DONE


async def test_what_follows_twice_is_there_once(store: FullStore) -> None:
    [a, b] = await start(store, job("a"), job("b"))
    first, second = job("x", key="k"), job("y", key="k")
    await store.settle([done(a, None, (first, first)), done(b, None, (first, second))])
    assert ids(await take(store)) == ["x"]


async def test_a_bad_follower_spoils_nothing(store: FullStore) -> None:
    [a, b] = await start(store, job("a"), job("b"))
    with pytest.raises(ConfigurationError):
        await store.settle([done(a), done(b, None, (job("", queue="no way"),))])
    assert (await get(store, "a")).status is Status.RUNNING
    assert list(await store.settle([done(a), done(b)])) == []


async def test_a_run_that_was_no_crash_ends_the_suspicion(store: FullStore) -> None:
    for verdict in (VERDICTS["retry"], VERDICTS["give_back"]):
        running = await _suspect(store)
        await store.settle([verdict(running)])
        assert not (await get(store, running.job.id)).suspect


async def test_a_run_that_never_started_proves_nothing(store: FullStore) -> None:
    running = await _suspect(store)
    await store.settle([give_back(running, started=False)])
    assert (await get(store, running.job.id)).suspect


async def _suspect(store: FullStore) -> Claim:
    [a, _] = await start(store, job(), job(), worker="doomed")
    await store.recover_worker("doomed", Death(signal=9))
    claims = {claim.job.id: claim for claim in await take(store)}
    assert claims[a.job.id].job.suspect
    return claims[a.job.id]
