"""What a worker holds: leases kept and lost, cancels, progress, and stores that go away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.engine.rig import Gate, Rig, until

from outlast import Hooks, JobCancelled, Status, StoreUnavailable, current
from outlast.job import Death, Job, Progress
from outlast.worker import claims, renew

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Verdict


def away(*_: object, **__: object) -> None:
    raise StoreUnavailable("no route")


async def test_a_lease_is_kept_as_long_as_the_job_runs(rig: Rig) -> None:
    gate = Gate(rig)
    handle = await gate.task.enqueue(1)
    async with rig.worker(lease=15):
        await until(lambda: gate.running == [1])
        for _ in range(10):
            await rig.pass_time(10)
            assert await rig.store.recover(10) == 0
        gate.open.set()
        assert await handle.result(60) == 1
    assert (await rig.job(handle.id)).attempt == 1


async def test_more_leases_than_go_into_one_write_are_all_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renew, "CHUNK", 2)
    gate = Gate(rig)
    handles = [await gate.task.enqueue(n) for n in range(5)]
    async with rig.worker(lease=15, concurrency=5):
        await until(lambda: len(gate.running) == 5)
        for _ in range(4):
            await rig.pass_time(10)
        jobs = [await rig.job(handle.id) for handle in handles]
        assert [job.status for job in jobs] == [Status.RUNNING] * 5
        gate.open.set()


async def test_fast_jobs_are_never_renewed(rig: Rig) -> None:
    gate = Gate(rig)
    gate.open.set()
    async with rig.worker(open_store=rig.spied):
        for n in range(20):
            await gate.task.enqueue(n)
            await rig.pass_time(0.5)
    assert sum(spy.calls["renew"] for spy in rig.spies) == 0


async def test_what_was_taken_over_is_cancelled_and_not_settled(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(rig)
    lost: list[str] = []
    seen: list[bool] = []

    class Listener(Hooks):
        def job_lost(self, job: Job) -> None:
            lost.append(job.id)

    @rig.app.task(name="watchful")
    async def watchful() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(current().lease_lost)

    handle = await watchful.enqueue()
    async with rig.worker(hooks=[Listener()], queues=["default"]):
        await rig.pass_time(1)
        await rig.ledger.pause("default")
        await steal(rig, handle.id)
        await rig.pass_time(3)
        assert seen == [True]
        assert lost == [handle.id]
        job = await rig.job(handle.id)
        assert (job.status, job.attempt) == (Status.QUEUED, 1)
    assert "was lost to another worker" in caplog.text
    assert gate.ran == []


async def steal(rig: Rig, id: str) -> None:
    """Take a job from its worker, as if its lease had run out."""
    job = await rig.job(id)
    assert job.worker is not None
    assert await rig.store.recover_worker(job.worker, Death(blamed=frozenset())) == 1


async def test_a_late_verdict_is_refused_and_logged(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(rig)
    handle = await gate.task.enqueue(1)
    lost: list[str] = []

    class Listener(Hooks):
        def job_lost(self, job: Job) -> None:
            lost.append(job.id)

    async with rig.worker(hooks=[Listener()]):
        await until(lambda: gate.running == [1])
        await rig.ledger.pause("default")
        await steal(rig, handle.id)
        gate.open.set()
        await until(lambda: lost)
        assert (await rig.job(handle.id)).status is Status.QUEUED
        await rig.ledger.pause("default", False)
        assert await handle.result(60) == 1
    assert lost == [handle.id]
    assert "belongs to another worker by now" in caplog.text


async def test_a_cancel_reaches_the_running_task_once(rig: Rig) -> None:
    cancels = 0
    cleaned = asyncio.Event()

    @rig.app.task(name="tidy")
    async def tidy() -> None:
        nonlocal cancels
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancels += 1
            assert current().cancelled
            try:
                await cleaned.wait()  # it may take its time to clean up
            except asyncio.CancelledError:
                cancels += 1
            raise

    handle = await tidy.enqueue()
    async with rig.worker():
        await rig.pass_time(1)
        assert await handle.cancel() == "requested"
        await rig.pass_time(10)
        assert cancels == 1
        cleaned.set()
        with pytest.raises(JobCancelled):
            await handle.result(60)
    assert cancels == 1


async def test_a_job_claimed_ahead_is_cancelled_before_it_starts(rig: Rig) -> None:
    gate = Gate(rig)

    @rig.app.task(name="tick")
    async def tick() -> None:
        rig.clock.advance(0.001)

    for _ in range(200):
        await tick.enqueue()
    ids = [(await gate.task.enqueue(n)).id for n in range(20)]
    async with rig.worker(concurrency=1):
        await until(lambda: gate.running == [0])
        claimed = [id for id in ids[1:] if (await rig.job(id)).status is Status.RUNNING]
        assert claimed
        assert set(await rig.ledger.cancel(claimed)) == {"requested"}
        await rig.pass_time(3)
        assert {(await rig.job(id)).status for id in claimed} == {Status.CANCELLED}
        assert {(await rig.job(id)).attempt for id in claimed} == {0}
    assert gate.ran == [0]


async def test_progress_is_stored_while_it_runs(rig: Rig) -> None:
    go_on = asyncio.Event()
    stored: list[Progress] = []
    rig.before["renew"] = lambda claims, lease, notes: stored.extend(notes)

    @rig.app.task(name="reports")
    async def reports() -> None:
        for step in range(4):
            current().progress(step / 4, f"step {step}")
        await go_on.wait()

    handle = await reports.enqueue()
    async with rig.worker(open_store=rig.spied):
        await rig.pass_time(2)
        note = (await rig.job(handle.id)).progress
        assert note is not None
        assert (note.value, note.text) == (0.75, "step 3")
        written = len(stored)
        await rig.pass_time(5)
        assert len(stored) == written, "once is enough"
        go_on.set()
        await handle.result(60)


async def test_verdicts_wait_for_a_store_that_is_away(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(rig)
    gate.open.set()
    rig.before["settle"] = away
    handles = [await gate.task.enqueue(n) for n in range(30)]
    async with rig.worker(open_store=rig.spied, concurrency=4):
        await rig.pass_time(60)
        assert {await handle.status() for handle in handles} <= {Status.RUNNING, Status.QUEUED}
        assert caplog.text.count("verdicts wait, the store can't be reached: no route") <= 2
        assert "verdicts wait, the store can't be reached: no route" in caplog.text
        del rig.before["settle"]
        await rig.pass_time(2)
        assert [await handle.result(60) for handle in handles] == list(range(30))
    assert sorted(gate.ran) == list(range(30)), "none of them ran twice"


async def test_no_more_is_claimed_while_verdicts_pile_up(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "MAX_UNSETTLED", 10)
    stored = asyncio.Event()
    ran: list[int] = []

    async def hold(verdicts: Sequence[Verdict]) -> None:
        await stored.wait()

    @rig.app.task(name="quick")
    async def quick(n: int) -> None:
        ran.append(n)

    handles = [await quick.enqueue(n) for n in range(100)]
    rig.before["settle"] = hold
    async with rig.worker(open_store=rig.spied, concurrency=4):
        await rig.pass_time(5)
        assert 10 <= len(ran) <= 20
        stored.set()
        for handle in handles:
            await handle.result(60)


async def test_an_outage_does_not_fill_the_log(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.before["claim"] = away
    async with rig.worker(open_store=rig.spied):
        await rig.pass_time(600)
        told = caplog.text.count("no claims, the store can't be reached: no route")
        assert 2 <= told <= 11, "it is tried again every second, and told every minute"
        del rig.before["claim"]


async def test_claims_and_waits_go_on_when_the_store_is_back(rig: Rig) -> None:
    gate = Gate(rig)
    gate.open.set()
    async with rig.worker(open_store=rig.spied):
        for method in ("claim", "wait"):
            rig.before[method] = away
            handle = await gate.task.enqueue(1)
            await rig.pass_time(20)
            del rig.before[method]
            await rig.pass_time(2)
            assert await handle.result(60) == 1


async def test_an_outcome_the_store_cannot_take_buries_the_job_alone(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(rig)
    handles = [await gate.task.enqueue(n) for n in range(10)]

    def picky(verdicts: Sequence[Verdict]) -> None:
        if any(verdict.result == b"3" for verdict in verdicts):
            raise OverflowError("not this one")

    rig.before["settle"] = picky
    async with rig.worker(open_store=rig.spied):
        await until(lambda: len(gate.running) == 10)
        gate.open.set()
        jobs = await asyncio.gather(*(ended(rig, handle.id) for handle in handles))
    assert [job.status for job in jobs].count(Status.DONE) == 9
    assert jobs[3].status is Status.DEAD
    assert jobs[3].failure is not None
    assert "could not be stored: OverflowError('not this one')" in jobs[3].failure.message
    assert "the store can't take its outcome" in caplog.text


async def ended(rig: Rig, id: str) -> Job:
    (job,) = await rig.ledger.finished([id], 5)
    return job


async def orphan(rig: Rig, gate: Gate) -> str:
    """A job whose worker is gone without a trace: only its lease will tell."""
    handle = await gate.task.enqueue(1)
    (claim,) = await rig.store.claim(("default",), ["gate"], 1, 15.0, "ghost")
    assert claim.job.id == handle.id
    return handle.id


async def test_a_lease_that_ran_out_is_recovered(rig: Rig) -> None:
    gate = Gate(rig)
    gate.open.set()
    async with rig.worker(lease=15):
        await rig.pass_time(20)
        await rig.ledger.pause("default")
        await rig.pass_time(1)
        await rig.ledger.pause("default", False)
        id = await orphan_beside_a_worker(rig, gate)
        await rig.pass_time(14)
        assert (await rig.job(id)).status is Status.RUNNING
        await rig.pass_time(2.5)
        assert (await ended(rig, id)).attempt == 2


async def orphan_beside_a_worker(rig: Rig, gate: Gate) -> str:
    """The same, so quick that the worker that runs does not get it first."""
    job = Job(id="orphan", task="gate", payload=b'{"n":1}')
    await rig.store.add([job])
    (claim,) = await rig.store.claim(("default",), ["gate"], 1, 15.0, "ghost")
    assert claim.job.id == "orphan"
    return "orphan"


async def test_a_worker_that_just_started_gives_everybody_one_lease(rig: Rig) -> None:
    gate = Gate(rig)
    gate.open.set()
    id = await orphan(rig, gate)
    rig.clock.advance(3600)  # nobody was there, perhaps because the store was not
    async with rig.worker(lease=15):
        await rig.pass_time(14)
        assert (await rig.job(id)).status is Status.RUNNING
        await rig.pass_time(3)
        assert (await ended(rig, id)).attempt == 2


@pytest.mark.parametrize("event", ["outage", "clock step", "standstill"])
async def test_after_a_disturbance_everybody_gets_one_lease(rig: Rig, event: str) -> None:
    gate = Gate(rig)
    gate.open.set()
    recovered: list[int] = []

    def asked(limit: int) -> None:
        if limit:
            recovered.append(limit)

    rig.before["recover"] = asked
    async with rig.worker(lease=15, open_store=rig.spied):
        await rig.pass_time(20)
        assert recovered
        if event == "outage":
            rig.before["prune"] = away
            await rig.pass_time(6)
            del rig.before["prune"]
            await rig.pass_time(1)
        elif event == "clock step":
            rig.clock.step(3 * 86400)
        else:
            rig.clock.advance(100)
        await rig.pass_time(0.25)
        recovered.clear()
        await rig.pass_time(12)
        assert recovered == []
        await rig.pass_time(5)
        assert recovered


async def test_calls_that_hang_are_an_outage_though_none_of_them_fails(rig: Rig) -> None:
    """Somebody holds a lock: the quiet after the last outage ends while all wait for it."""
    freed = asyncio.Event()
    Gate(rig)
    await rig.store.add([Job(id="theirs", task="gate", payload=b'{"n":1}')])
    (claim,) = await rig.store.claim(("default",), ["gate"], 1, 15.0, "another worker")
    async with rig.worker(lease=15, open_store=rig.spied):
        await rig.pass_time(4)
        assert await rig.store.renew([claim], 10.0) == []
        for name in ("claim", "renew", "recover", "prune", "beat"):
            rig.before[name] = lambda *_: freed.wait()
        await rig.pass_time(20)
        # Ours are let in first, and the renewal that has waited all the while comes after them.
        rig.before.clear()
        freed.set()
        await rig.pass_time(5)
        assert await rig.store.renew([claim], 15.0) == []


async def test_a_job_whose_old_run_goes_on_here_is_not_started_beside_it(rig: Rig) -> None:
    leave = asyncio.Event()
    runs: list[int] = []

    @rig.app.task(name="deaf")
    async def deaf() -> None:
        runs.append(current().attempt)
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                pass

    handle = await deaf.enqueue()
    async with rig.worker():
        await until(lambda: runs == [1])
        await steal(rig, handle.id)
        await rig.pass_time(5)
        assert runs == [1], "it came back to this worker, which still runs it"
        leave.set()
        await rig.pass_time(3)
        await handle.result(60)
    assert runs == [1, 2]


async def test_runs_learn_when_their_lease_is_over_with_the_store_away(rig: Rig) -> None:
    states: list[Any] = []
    look = asyncio.Event()

    @rig.app.task(name="looks")
    async def looks() -> None:
        for _ in range(3):
            await look.wait()
            look.clear()
            states.append(current().lease_lost)

    handle = await looks.enqueue()
    async with rig.worker(lease=15, open_store=rig.spied):
        await rig.pass_time(5)
        look.set()
        await until(lambda: states == [False])
        rig.before["renew"] = away
        await rig.pass_time(20)
        look.set()
        await until(lambda: states == [False, True])
        del rig.before["renew"]
        await rig.pass_time(2)
        look.set()
        await handle.result(60)
    assert states == [False, True, False], "nobody had taken it"


async def test_what_ends_while_its_lease_is_over_counts_if_nobody_took_it(rig: Rig) -> None:
    go_on = asyncio.Event()

    @rig.app.task(name="slow")
    async def slow() -> bool:
        await go_on.wait()
        return current().lease_lost

    handle = await slow.enqueue()
    async with rig.worker(lease=15, open_store=rig.spied):
        await rig.pass_time(5)
        rig.before["renew"] = away
        await rig.pass_time(20)
        go_on.set()
        assert await handle.result(60) is True
    assert (await rig.job(handle.id)).attempt == 1


async def test_an_old_verdict_does_not_let_go_of_a_newer_claim(rig: Rig) -> None:
    gate = Gate(rig)
    answer = asyncio.Event()
    asked = asyncio.Event()

    async def hold(verdicts: Sequence[Verdict]) -> None:
        asked.set()
        await answer.wait()

    handle = await gate.task.enqueue(1)
    rig.before["settle"] = hold
    async with rig.worker(open_store=rig.spied, lease=15):
        await until(lambda: gate.running == [1])
        gate.doors[1].set()
        await asked.wait()  # its verdict is on the way, and takes its time
        gate.doors[1].clear()
        await steal(rig, handle.id)
        await until(lambda: gate.ran == [1, 1])
        del rig.before["settle"]
        answer.set()
        for _ in range(10):
            await rig.pass_time(10)
            assert await rig.store.recover(10) == 0, "it is renewed"
        gate.open.set()
        assert await handle.result(60) == 1
    assert (await rig.job(handle.id)).attempt == 2
