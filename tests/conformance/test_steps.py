"""Steps: pieces of a job that are stored once, by the one who holds it, for as long as it lives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import OOPS, add, job, start, take

from outlast.job import DAY, Death, Status, Step, cancelled, dead, done, give_back, retry
from outlast.store import Feature, Stepping, offers

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock

    from outlast.job import Claim


@pytest.fixture
def steps(store: FullStore) -> Stepping:
    if Feature.STEPS not in store.features:
        pytest.skip("this store keeps no steps")
    assert offers(store, Stepping)
    return store


async def known(steps: Stepping, claim: Claim) -> dict[str, bytes | None]:
    found = {step.name: step.result for step in await steps.recall(claim)}
    assert found == {step.name: step.result for step in steps.recall_now(claim)}
    return found


async def test_remembered_for_the_next_run(store: FullStore, steps: Stepping, place: Place) -> None:
    claim = await start(store, job("a", max_attempts=9))
    other = await start(store, job("b"))
    assert await steps.remember(claim, Step(name="one", digest=b"1", result=b"x"))
    assert steps.remember_now(claim, Step(name="two", digest=b"2", result=b""))
    await store.settle([retry(claim, 0, OOPS)])
    store = await place.reopen()
    assert offers(store, Stepping)
    again, *_ = await take(store)
    found = sorted(await store.recall(again), key=lambda step: step.name)
    assert found == [
        Step(name="one", digest=b"1", result=b"x"),
        Step(name="two", digest=b"2", result=b""),
    ]
    assert await known(store, other) == {}


async def test_the_last_one_of_a_name_counts(store: FullStore, steps: Stepping) -> None:
    claim = await start(store, job("a"))
    await steps.remember(claim, Step(name="one", digest=b"1", result=b"x"))
    await steps.remember(claim, Step(name="one", digest=b"2", result=b"y"))
    assert [(s.digest, s.result) for s in await steps.recall(claim)] == [(b"2", b"y")]


async def test_refused_to_one_who_lost_the_job(store: FullStore, steps: Stepping) -> None:
    late = await start(store, job("a"))
    await store.recover_worker("w1", Death(started=frozenset({"a"}), blamed=frozenset()))
    assert not await steps.remember(late, Step(name="one", result=b"late")), "it waits"
    [claim] = await take(store, worker="w2")
    assert not await steps.remember(late, Step(name="one", result=b"late")), "another has it"
    assert not steps.remember_now(late, Step(name="one", result=b"late"))
    assert await steps.remember(claim, Step(name="one", result=b"good"))
    assert await known(steps, claim) == {"one": b"good"}
    await store.settle([done(claim)])
    assert not await steps.remember(claim, Step(name="two", result=b"late")), "it is over"


async def test_revive_keeps_them(store: FullStore, steps: Stepping) -> None:
    claim = await start(store, job("a"))
    await steps.remember(claim, Step(name="one", result=b"x"))
    await store.settle([dead(claim, OOPS)])
    await store.revive(["a"])
    [claim] = await take(store)
    assert await known(steps, claim) == {"one": b"x"}


async def test_gone_with_their_job(store: FullStore, steps: Stepping, clock: FakeClock) -> None:
    """The same id may come again, as another job."""
    ends: dict[str, Any] = {"pruned": done, "settled": done, "given up": cancelled, "purged": done}
    for name, end in ends.items():
        gone = job(name, task="t", keep=0 if name in ("settled", "given up") else DAY)
        claim = await start(store, gone)
        await steps.remember(claim, Step(name="one", result=b"x"))
        await store.settle([end(claim)])
        if name == "pruned":
            clock.advance(DAY)
            assert await store.prune(100) == 1
        if name == "purged":
            await store.purge("default", [Status.DONE])
        assert list(await store.get([name])) == [None]
        claim = await start(store, gone)
        assert await known(steps, claim) == {}, name
        await store.settle([done(claim)])


async def test_gone_with_a_job_that_was_cancelled_in_the_queue(
    store: FullStore, steps: Stepping
) -> None:
    gone = job("a", keep=0)
    claim = await start(store, gone)
    await steps.remember(claim, Step(name="one", result=b"x"))
    await store.settle([give_back(claim)])
    await store.cancel(["a"])
    claim = await start(store, gone)
    assert await known(steps, claim) == {}


async def test_what_is_left_of_a_wait(store: FullStore, steps: Stepping, clock: FakeClock) -> None:
    claim = await start(store, job("a"))
    await steps.remember(claim, Step(name="nap", delay=100))
    await steps.remember(claim, Step(name="call", delay=10, event="bell"))
    clock.advance(30)
    found = {step.name: step for step in await steps.recall(claim)}
    assert found["nap"].left == pytest.approx(70)
    assert found["nap"].result is None
    assert found["call"].left == pytest.approx(-20)
    assert found["call"].event == "bell"


async def test_a_thousand(store: FullStore, steps: Stepping) -> None:
    claim = await start(store, job("a"))
    for n in range(1000):
        assert await steps.remember(claim, Step(name=f"n#{n}", result=b"%d" % n))
    assert await known(steps, claim) == {f"n#{n}": b"%d" % n for n in range(1000)}


async def test_namespaces_are_apart(store: FullStore, steps: Stepping, place: Place) -> None:
    other = await place.open("other")
    assert offers(other, Stepping)
    claim, its = await start(store, job("a")), await start(other, job("a"))
    await steps.remember(claim, Step(name="one", result=b"x"))
    assert await known(other, its) == {}
    await steps.emit("bell", b"1", 100)
    assert await other.event("bell") is None
    assert await other.emit("bell", b"2", 100)


# -- fences


async def test_a_fence_grows_with_each_start(store: FullStore, place: Place) -> None:
    await add(store, job("a", max_attempts=99, max_crashes=None))
    fences = []
    for n in range(6):
        [claim] = await take(store, worker="w1")
        fences.append(claim.fence)
        if n == 0:
            await store.settle([retry(claim, 0, OOPS)])
        elif n == 1:
            await store.settle([give_back(claim)])
        elif n == 2:
            await store.recover_worker("w1", Death(started=None, alone=True))
        elif n == 3:
            await store.settle([dead(claim, OOPS)])
            await store.revive(["a"])
        elif n == 4:
            await store.settle([retry(claim, 0, OOPS)])
            store = await place.reopen()
    assert fences == sorted(set(fences))
    assert fences[0] > 0
    assert fences[-1] < 2**53, "a number that JSON can carry"
