"""`renew`: longer leases, progress, and the news that a claim is lost or unwanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.steps import get, ids, job, start, take

from outlast.job import Claim, Lost, Progress, Status, done, give_back

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_a_renewed_lease_runs_from_now(store: FullStore, clock: FakeClock) -> None:
    [a, _] = await start(store, job("a"), job("b"), lease=10)
    clock.advance(9)
    assert list(await store.renew([a], 10)) == []
    clock.advance(9)
    assert await store.recover(10) == 1
    assert (await get(store, "a")).status is Status.RUNNING
    assert (await get(store, "b")).status is Status.QUEUED
    clock.advance(1)
    assert await store.recover(10) == 1


async def test_renewed_again_and_again(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a"), lease=10)
    for _ in range(100):
        clock.advance(9)
        assert list(await store.renew([running], 10)) == []
        assert await store.recover(10) == 0
    assert list(await store.settle([done(running)])) == []


async def test_a_lease_can_be_made_shorter(store: FullStore, clock: FakeClock) -> None:
    running = await start(store, job("a"), lease=1000)
    await store.renew([running], 5)
    clock.advance(5)
    assert await store.recover(10) == 1


async def test_a_renewal_through_another_handle(
    store: FullStore, place: Place, clock: FakeClock
) -> None:
    running = await start(store, job("a"), lease=10)
    clock.advance(5)
    await (await place.open()).renew([running], 10)
    clock.advance(9)
    assert await store.recover(10) == 0


async def test_a_late_renewal_still_counts_if_nobody_took_it_back(
    store: FullStore, clock: FakeClock
) -> None:
    running = await start(store, job("a"), lease=10)
    clock.advance(100)
    assert list(await store.renew([running], 10)) == []
    assert await store.recover(10) == 0


async def test_claims_that_are_not_ours_any_more(store: FullStore) -> None:
    [ended, back, held, mine] = await start(store, *(job(n) for n in ("e", "b", "h", "m")))
    await store.settle([done(ended), give_back(back), give_back(held)])
    [_, again] = await take(store)
    forged = Claim(mine.job, bytes(16))
    unknown = Claim(job("unknown"), b"\x01" * 24)
    asked = [ended, back, held, mine, forged, unknown]
    lost = list(await store.renew(asked, 10))
    assert sorted(ids(lost)) == sorted(["e", "b", "h", "m", "unknown"])
    assert all(each.reason == "lost" for each in lost)
    assert list(await store.renew([mine, again], 10)) == []


async def test_a_lost_claim_does_not_prolong_the_new_one(
    store: FullStore, clock: FakeClock
) -> None:
    old = await start(store, job("a"))
    await store.settle([give_back(old)])
    await take(store, lease=10)
    await store.renew([old], 1000, [Progress(id="a", value=0.5)])
    assert (await get(store, "a")).progress is None
    clock.advance(10)
    assert await store.recover(10) == 1


async def test_a_cancel_request_is_told_and_the_lease_still_runs(
    store: FullStore, clock: FakeClock
) -> None:
    [a, b] = await start(store, job("a"), job("b"), lease=10)
    assert list(await store.cancel(["a"])) == ["requested"]
    clock.advance(9)
    for _ in range(2):
        assert list(await store.renew([a, b], 10)) == [Lost(a, "cancelled")]
    clock.advance(9)
    assert await store.recover(10) == 0
    assert list(await store.settle([done(a)])) == []


async def test_progress(store: FullStore, place: Place) -> None:
    [a, b] = await start(store, job("a"), job("b"))
    notes = [Progress(id="a", value=0.25, text="a \N{SNOWMAN}"), Progress(id="b", text="only text")]
    assert list(await store.renew([a, b], 10, notes)) == []
    store = await place.reopen()
    assert (await get(store, "a")).progress == notes[0]
    assert (await get(store, "b")).progress == notes[1]
    await store.renew([a], 10, [Progress(id="a", value=1.0)])
    assert (await get(store, "a")).progress == Progress(id="a", value=1.0)
    await store.renew([a], 10)
    assert (await get(store, "a")).progress == Progress(id="a", value=1.0)


async def test_progress_of_a_job_that_is_not_renewed(store: FullStore) -> None:
    [a, _] = await start(store, job("a"), job("b"))
    await store.renew([a], 10, [Progress(id="b", value=0.5), Progress(id="nobody", value=0.5)])
    assert (await get(store, "b")).progress is None


async def test_nothing_to_renew(store: FullStore) -> None:
    assert list(await store.renew([], 10)) == []
    assert list(await store.renew([], 10, [Progress(id="a")])) == []


async def test_many_at_once(store: FullStore, clock: FakeClock) -> None:
    claims = await start(store, *(job() for _ in range(700)), lease=10)
    await store.settle([done(claim) for claim in claims[::7]])
    clock.advance(5)
    lost = list(await store.renew(claims, 10))
    assert sorted(ids(lost)) == sorted(ids(claims[::7]))
    clock.advance(9)
    assert await store.recover(1000) == 0
