"""`recover_worker`: at once, and the crash goes to the job that must have been the one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import add, get, ids, job, start, take

from outlast.job import Claim, Death, Lost, Status, done

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_only_that_workers_claims(store: FullStore) -> None:
    mine = await start(store, job("a"), worker="w1")
    await start(store, job("b"), job("c"), worker="w2")
    assert await store.recover_worker("w2", Death()) == 2
    assert await store.recover_worker("w2", Death()) == 0
    assert await store.recover_worker("nobody", Death()) == 0
    assert list(await store.settle([done(mine)])) == []
    assert ids(await take(store)) == ["b", "c"]


async def test_what_had_not_started_goes_back_untouched(store: FullStore) -> None:
    before = [job("a"), job("b", priority=1)]
    await add(store, *before)
    untouched = [await get(store, id_) for id_ in ("a", "b")]
    claims = await take(store)
    assert await store.recover_worker("w1", Death(started=frozenset(), signal=9)) == 2
    for job_ in untouched:
        found = await get(store, job_.id)
        assert (found.attempt, found.crashes, found.suspect) == (0, 0, False)
        assert (found.status, found.failure, found.worker) == (Status.QUEUED, None, None)
    assert list(await store.settle([done(claims[0])])) == [Lost(claims[0], "lost")]


async def test_the_only_started_one_gets_the_crash(store: FullStore, place: Place) -> None:
    await start(store, job("a"), job("ahead"), worker="w2")
    cause = Death(started=frozenset({"a"}), alone=True, signal=11)
    assert await store.recover_worker("w2", cause) == 2
    store = await place.reopen()
    crashed, ahead = await get(store, "a"), await get(store, "ahead")
    assert (crashed.status, crashed.crashes, crashed.attempt) == (Status.QUEUED, 1, 1)
    assert (ahead.status, ahead.crashes, ahead.attempt) == (Status.QUEUED, 0, 0)
    assert not ahead.suspect


async def test_spent_and_buried_with_signal_and_exit_code(
    store: FullStore, clock: FakeClock
) -> None:
    await add(store, job("a", max_crashes=3))
    cause = Death(alone=True, started=frozenset({"a"}), signal=9, exit_code=-9, message="oom?")
    for crashes in (1, 2, 3):
        [claim] = await take(store, worker="w2")
        clock.advance(1)
        assert await store.recover_worker("w2", cause) == 1
        assert (await get(store, "a")).crashes == crashes
        assert list(await store.settle([done(claim)])) == [Lost(claim, "lost")]
    found = await get(store, "a")
    assert found.failures == 0
    assert found.status is Status.DEAD
    assert found.finished_at == clock.now()
    assert found.failure is not None
    assert found.failure.kind == "crash"
    assert (found.failure.signal, found.failure.exit_code) == (9, -9)
    assert "9" in found.failure.message
    assert await take(store) == []


async def test_the_burial_of_one_touches_no_other(store: FullStore) -> None:
    await start(store, job("a", max_crashes=1), worker="w2")
    await add(store, job("b"))
    await store.recover_worker("w2", Death(alone=True, started=frozenset({"a"})))
    assert [(await get(store, id_)).crashes for id_ in ("a", "b")] == [1, 0]


async def test_no_limit_of_crashes(store: FullStore) -> None:
    await add(store, job("a", max_crashes=None))
    for _ in range(6):
        await take(store, worker="w2")
        await store.recover_worker("w2", Death(alone=True))
    assert (await get(store, "a")).crashes == 6


async def test_beside_others_all_are_suspects_and_none_is_counted(store: FullStore) -> None:
    await start(store, *(job(f"{n}", max_crashes=1) for n in range(100)), worker="w2")
    started = frozenset(f"{n}" for n in range(99))
    assert await store.recover_worker("w2", Death(started=started, signal=9)) == 100
    found = [each for each in await store.get([f"{n}" for n in range(100)]) if each]
    assert all((each.status, each.crashes) == (Status.QUEUED, 0) for each in found)
    assert [each.suspect for each in found] == [True] * 99 + [False]
    assert [each.attempt for each in found] == [1] * 99 + [0]


async def test_nobody_knows_what_had_started(store: FullStore) -> None:
    await start(store, job("a"), job("b"), worker="w2")
    await store.recover_worker("w2", Death(signal=9))
    for id_ in ("a", "b"):
        found = await get(store, id_)
        assert (found.attempt, found.crashes, found.suspect) == (1, 0, True)


async def test_a_suspect_that_ran_alone_is_to_blame(store: FullStore) -> None:
    await start(store, job("a", max_crashes=1), job("b"), worker="w2")
    await store.recover_worker("w2", Death())
    [suspect] = await take(store, 1, worker="w3")
    assert suspect.job.suspect
    assert await store.recover_worker("w3", Death(started=frozenset({"a"}))) == 1
    assert (await get(store, "a")).status is Status.DEAD
    assert (await get(store, "b")).status is Status.QUEUED


async def test_a_suspect_that_did_not_start_stays_one(store: FullStore) -> None:
    await add(store, job("a"), job("b"))
    await take(store, worker="w1")
    await store.recover_worker("w1", Death())
    await take(store, worker="w2")
    await store.recover_worker("w2", Death(started=frozenset()))
    for found in await store.get(["a", "b"]):
        assert found is not None
        assert (found.attempt, found.suspect) == (1, True)


async def test_one_that_had_lost_its_claim_may_have_been_the_one(store: FullStore) -> None:
    lost = await start(store, job("lost"), worker="w2")
    await start(store, job("held"), worker="w2")
    assert list(await store.settle([done(lost)])) == []
    await store.recover_worker("w2", Death(started=frozenset({"lost", "held"}), signal=9))
    found = await get(store, "held")
    assert (found.crashes, found.suspect) == (0, True)


async def test_what_had_returned_is_not_to_blame(store: FullStore) -> None:
    await start(store, job("returned"), job("running"), job("ahead"), worker="w2")
    cause = Death(
        started=frozenset({"returned", "running"}),
        blamed=frozenset({"running"}),
        alone=True,
        signal=6,
    )
    assert await store.recover_worker("w2", cause) == 3
    returned = await get(store, "returned")
    assert (returned.status, returned.attempt) == (Status.QUEUED, 1)
    assert (returned.crashes, returned.suspect) == (0, False)
    assert (await get(store, "running")).crashes == 1
    assert (await get(store, "ahead")).attempt == 0


async def test_nobody_is_to_blame(store: FullStore) -> None:
    await start(store, job("a", max_crashes=1), worker="w2")
    cause = Death(started=frozenset({"a"}), blamed=frozenset(), alone=True)
    assert await store.recover_worker("w2", cause) == 1
    found = await get(store, "a")
    assert (found.status, found.attempt, found.crashes) == (Status.QUEUED, 1, 0)
    assert not found.suspect


async def test_settled_jobs_stay_settled(store: FullStore) -> None:
    [a, _] = await start(store, job("a"), job("b"), worker="w2")
    await store.settle([done(a, b"1")])
    assert await store.recover_worker("w2", Death(started=frozenset({"a", "b"}))) == 1
    assert (await get(store, "a")).status is Status.DONE
    assert (await get(store, "a")).result == b"1"


async def test_they_keep_their_place(store: FullStore) -> None:
    await start(store, job("1"), job("2"), job("3"), worker="w2")
    await add(store, job("4"))
    await store.recover_worker("w2", Death(started=frozenset({"2"}), alone=True))
    assert ids(await take(store)) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("alone", [True, False])
async def test_a_cancel_request_wins_unless_it_is_spent(store: FullStore, alone: bool) -> None:
    names = ["a", "spent"] if alone else ["a", "b", "ahead"]
    await start(store, *(job(n) for n in names if n != "spent"), worker="w2")
    if alone:
        await start(store, job("spent", max_crashes=1), worker="w4")
    await store.cancel(names)
    started = frozenset({"a", "b"})
    await store.recover_worker("w2", Death(started=started, alone=alone))
    await store.recover_worker("w4", Death(alone=True))
    for name in names:
        status = Status.DEAD if name == "spent" else Status.CANCELLED
        assert (await get(store, name)).status is status
    assert await take(store) == []


async def test_another_namespace_is_not_touched(store: FullStore, place: Place) -> None:
    other = await place.open("other")
    await start(other, job("a"), worker="w2")
    assert await store.recover_worker("w2", Death()) == 0
    assert isinstance((await take(store, worker="w2")), list)
    assert (await get(other, "a")).status is Status.RUNNING


async def test_no_receipt_is_valid_twice(store: FullStore) -> None:
    old = await start(store, job("a"), worker="w2")
    await store.recover_worker("w2", Death(started=frozenset()))
    [new] = await take(store, worker="w2")
    assert isinstance(new, Claim)
    assert new.receipt != old.receipt
    assert list(await store.renew([old, new], 10)) == [Lost(old, "lost")]
