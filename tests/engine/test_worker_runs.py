"""A worker at its work: what it claims, how many run at once, who runs alone."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from tests.engine.rig import Gate, Rig, Spy, until

from outlast import ConfigurationError, Hooks, Status
from outlast.chance import SeededChance
from outlast.execution import Means
from outlast.job import Claim, Death, Job
from outlast.worker.crew import PATIENCE, Crew

if TYPE_CHECKING:
    from outlast.job import Verdict


async def enqueue(gate: Gate, count: int) -> list[str]:
    return [(await gate.task.enqueue(n)).id for n in range(count)]


async def running(rig: Rig) -> int:
    return (await rig.store.depth("default")).running


async def test_it_runs_what_is_queued_and_records_the_results(rig: Rig) -> None:
    @rig.app.task(name="double")
    async def double(n: int) -> int:
        return n * 2

    handles = [await double.enqueue(n) for n in range(300)]
    async with rig.worker():
        assert [await handle.result(60) for handle in handles] == [n * 2 for n in range(300)]
    depth = await rig.store.depth("default")
    assert (depth.done, depth.live) == (300, 0)


async def test_what_has_run_leaves_nothing_to_the_collector(rig: Rig) -> None:
    left: list[weakref.ref[Any]] = []

    @rig.app.task(name="seen")
    async def seen() -> None:
        left.append(weakref.ref(asyncio.current_task()))

    async with rig.worker():
        gc.disable()
        try:
            await (await seen.enqueue()).result(60)
            await until(lambda: left[0]() is None)
        finally:
            gc.enable()


async def test_it_wakes_for_what_is_enqueued_later_and_for_what_becomes_due(rig: Rig) -> None:
    @rig.app.task(name="echo")
    async def echo(n: int) -> int:
        return n

    async with rig.worker():
        assert await (await echo.enqueue(1)).result(60) == 1
        late = await echo.using(delay=3600).enqueue(2)
        await rig.pass_time(10)
        assert await late.status() is Status.QUEUED
        rig.clock.advance(3600)
        assert await late.result(60) == 2


async def test_no_more_run_at_once_than_there_are_slots_nor_are_slow_ones_claimed_ahead(
    rig: Rig,
) -> None:
    gate = Gate(rig)
    ids = await enqueue(gate, 20)
    async with rig.worker(concurrency=3):
        await until(lambda: len(gate.running) == 3)
        await rig.pass_time(2)
        assert await running(rig) == 3, "the others are there for other workers"
        assert gate.ran == [0, 1, 2], "in their order"
        gate.open.set()
        for id in ids:
            await rig.app.handle(id).result(60)
    assert gate.most == 3


async def test_fast_jobs_are_claimed_ahead_by_the_pace_they_end_at(rig: Rig) -> None:
    claimed: list[int] = []
    rig.before["claim"] = lambda queues, tasks, limit, *_: claimed.append(limit)

    @rig.app.task(name="tick")
    async def tick() -> None:
        rig.clock.advance(0.001)

    for _ in range(400):
        await tick.enqueue()
    async with rig.worker(concurrency=5, open_store=rig.spied):
        await rig.drained()
    assert claimed[0] == 5
    # A thousand a second by the clock of the store, and 150 milliseconds of that are claimed ahead;
    # the next ones when half of them is left, from a store whose claims don't wait.
    assert 60 <= max(claimed) <= 95


async def test_what_was_claimed_ahead_of_a_slow_job_goes_back(rig: Rig) -> None:
    gate = Gate(rig)

    @rig.app.task(name="tick")
    async def tick() -> None:
        rig.clock.advance(0.001)

    for _ in range(200):
        await tick.enqueue()
    await enqueue(gate, 40)
    async with rig.worker(concurrency=2):
        await until(lambda: len(gate.running) == 2)
        assert await running(rig) > 2
        await rig.pass_time(1)
        assert await running(rig) == 2
        waiting = await rig.ledger.find(status=[Status.QUEUED])
        assert {job.attempt for job in waiting} == {0}, "what never started leaves no trace"
    assert sorted(gate.ran) == [0, 1]


async def test_unknown_tasks_are_left_alone_and_told(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(rig)
    gate.open.set()
    await rig.store.add([Job(id=f"new-{n}", task="not.here", payload=b"{}") for n in range(5)])
    await rig.store.add([Job(id="lone", task="gone", payload=b"{}")])
    known = await gate.task.enqueue(1)
    async with rig.worker():
        assert await known.result(60) == 1
        await rig.pass_time(130)
        assert "1 job of task gone waits in queue default" in caplog.text
        told = [record.getMessage() for record in caplog.records if "not.here" in record.message]
    assert all("5 jobs of task not.here wait in queue default" in line for line in told)
    assert len(told) == 3, "once a minute"
    assert (await rig.job("new-0")).status is Status.QUEUED


async def test_only_its_own_queues_are_served(rig: Rig) -> None:
    gate = Gate(rig)
    gate.open.set()
    here = await gate.task.using(queue="here").enqueue(1)
    there = await gate.task.using(queue="there").enqueue(2)
    async with rig.worker(queues=["here", "elsewhere"]):
        assert await here.result(60) == 1
        await rig.pass_time(20)
    assert await there.status() is Status.QUEUED


async def test_an_undecodable_payload_is_buried_with_its_bytes(rig: Rig) -> None:
    Gate(rig)
    await rig.store.add([Job(id="bad", task="gate", payload=b'{"n":"not a number"}')])
    async with rig.worker():
        (job,) = await rig.ledger.finished(["bad"], 60)
    assert job.status is Status.DEAD
    assert job.failure is not None
    assert job.failure.kind == "undecodable"
    assert job.payload == b'{"n":"not a number"}'
    assert job.attempt == 0


async def make_suspects(rig: Rig, ids: list[str]) -> None:
    """Have a worker die while these jobs run beside each other."""
    claims = await rig.store.claim(("default",), list(rig.app.tasks), len(ids), 15.0, "ghost")
    assert {claim.job.id for claim in claims} == set(ids)
    await rig.store.recover_worker("ghost", Death(started=frozenset(ids)))


async def test_suspects_run_alone_and_the_others_go_on(rig: Rig) -> None:
    gate = Gate(rig)
    suspects = await enqueue(gate, 3)
    await make_suspects(rig, suspects)
    others = [(await gate.task.enqueue(n)).id for n in range(3, 9)]
    async with rig.worker(concurrency=4):
        for n in range(3):
            await until(partial(gate.is_running, n))
            await rig.pass_time(1)
            assert gate.running == [n], "alone, and nobody pushes in"
            gate.doors[n].set()
        await until(lambda: len(gate.running) == 4)
        gate.open.set()
        for id in [*suspects, *others]:
            await rig.app.handle(id).result(60)


async def test_a_suspect_waits_for_what_is_not_stored_yet(rig: Rig) -> None:
    """Else it would take down with it what had ended, which would run again."""
    gate, stored = Gate(rig), asyncio.Event()
    stuck = asyncio.Event()

    async def hold(*_: Any) -> None:
        stuck.set()
        await stored.wait()

    suspect, other = await enqueue(gate, 2)
    await make_suspects(rig, [suspect])
    await rig.ledger.pause("default")
    first = await gate.task.using(queue="first").enqueue(2)
    async with rig.worker(open_store=rig.spied, concurrency=2, queues=["first", "default"]):
        await until(lambda: gate.running == [2])
        rig.before["settle"] = hold
        gate.doors[2].set()
        await until(stuck.is_set)
        await rig.ledger.pause("default", False)
        await rig.pass_time(1)
        assert gate.running == [], "the first has ended, but nobody has it on record"
        del rig.before["settle"]
        stored.set()
        assert await first.result(60) == 2
        await until(lambda: gate.running == [0])
        gate.open.set()
        for id in (suspect, other):
            await rig.app.handle(id).result(60)


async def test_a_suspect_waits_for_what_runs_but_not_for_ever(rig: Rig) -> None:
    gate = Gate(rig)
    ran: list[int] = []

    @rig.app.task(name="short")
    async def short(n: int) -> int:
        ran.append(n)
        return n

    suspect = (await short.enqueue(99)).id
    await make_suspects(rig, [suspect])
    await rig.ledger.pause("default")
    await gate.task.using(queue="first").enqueue(0)
    async with rig.worker(concurrency=2, queues=["first", "default"]):
        await until(lambda: gate.running == [0])
        await rig.ledger.pause("default", False)
        await rig.pass_time(2)
        late = await short.enqueue(1)
        await rig.pass_time(2)
        assert ran == [], "nothing starts while a suspect waits for the others"
        await rig.pass_time(PATIENCE)
        assert await late.result(60) == 1, "but one long job can't hold up everything"
        assert (await rig.job(suspect)).status is Status.QUEUED
        await rig.pass_time(PATIENCE + 1)
        later = await short.enqueue(2)
        await rig.pass_time(1.5 * PATIENCE)
        assert ran == [1], "it is back, and waits for longer than the first time"
        gate.open.set()
        await rig.pass_time(2 * PATIENCE)
        assert await rig.app.handle(suspect).result(60) == 99
        assert await later.result(60) == 2


async def test_a_suspect_that_waits_is_cancelled_before_it_starts(rig: Rig) -> None:
    gate = Gate(rig)
    [suspect] = await enqueue(gate, 1)
    await make_suspects(rig, [suspect])
    await rig.ledger.pause("default")
    await gate.task.using(queue="first").enqueue(7)
    async with rig.worker(concurrency=2, queues=["first", "default"]):
        await until(lambda: gate.running == [7])
        await rig.ledger.pause("default", False)
        await rig.pass_time(2)
        assert list(await rig.ledger.cancel([suspect])) == ["requested"]
        await rig.pass_time(2)
        assert (await rig.job(suspect)).status is Status.CANCELLED
        gate.open.set()
    assert gate.ran == [7]


async def test_hooks_hear_of_it_and_what_they_raise_hurts_nobody(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    class Listener(Hooks):
        def worker_started(self, worker: str, queues: Any, tasks: Any) -> None:
            heard.append(("worker_started", queues, tasks))

        def job_started(self, job: Job) -> None:
            heard.append(("job_started", job.id))
            raise RuntimeError("a hook's own trouble")

        def job_ended(self, job: Job, verdict: Verdict | None, seconds: float) -> None:
            heard.append(("job_ended", job.id, verdict.kind if verdict else None, seconds))

        def worker_stopping(self, worker: str) -> None:
            heard.append("worker_stopping")

        def worker_stopped(self, worker: str) -> None:
            heard.append("worker_stopped")

    @rig.app.task(name="two")
    async def two() -> None:
        rig.clock.advance(2.0)

    handle = await two.enqueue()
    async with rig.worker(hooks=[Listener()]):
        await handle.result(60)
    assert heard == [
        ("worker_started", ("default",), ["two"]),
        ("job_started", handle.id),
        ("job_ended", handle.id, "done", 2.0),
        "worker_stopping",
        "worker_stopped",
    ]
    assert "hook job_started of Listener failed" in caplog.text


async def test_it_signs_in_and_out(rig: Rig) -> None:
    Gate(rig)
    async with rig.worker(id="w-1", concurrency=7) as worker:
        await rig.pass_time(1)
        (info,) = await rig.ledger.workers()
        assert (info.id, info.queues, info.tasks) == ("w-1", ("default",), ("gate",))
        assert (info.concurrency, info.running) == (7, 0)
        assert repr(worker) == "<Worker w-1 queues=['default'] concurrency=7>"
    assert await rig.ledger.workers() == []


async def test_it_says_at_once_when_it_runs_more_or_less(rig: Rig) -> None:
    gate = Gate(rig)
    async with rig.worker():
        await rig.pass_time(1.5)
        handle = await gate.task.enqueue(1)
        await rig.pass_time(1.5)
        (info,) = await rig.ledger.workers()
        assert info.running == 1
        gate.open.set()
        await handle.result(60)
        await rig.pass_time(1.5)
        (info,) = await rig.ledger.workers()
        assert info.running == 0
        await rig.pass_time(25)
        (info,) = await rig.ledger.workers()
        assert rig.clock.now() - info.seen_at <= 11, "and now and then that it is there at all"


@pytest.mark.parametrize(
    "options",
    [
        {"queues": "default"}, {"queues": []}, {"queues": ["no spaces"]},
        {"concurrency": 0}, {"concurrency": True}, {"concurrency": 1.5}, {"concurrency": 10**6},
        {"lease": 0}, {"lease": float("nan")}, {"lease": "1"}, {"grace": -1},
        {"grace": float("inf")},
    ],
    ids=str,
)  # fmt: skip
def test_senseless_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rig().make(**options)


async def test_a_store_whose_wait_returns_at_once_does_not_keep_it_busy(rig: Rig) -> None:
    Gate(rig)

    class Nervous(Spy):
        async def wait(self, queues: Any, timeout: float) -> None:
            await asyncio.sleep(0)

    store = Nervous(rig.app.open_store(), {})
    others = iter([store, rig.spied()])
    async with rig.worker(open_store=lambda: next(others)):
        await rig.pass_time(30)
        assert 30 < store.calls["claim"] < 600


async def test_each_job_has_a_context_of_its_own(rig: Rig) -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
    seen: list[str] = []

    @rig.app.task(name="sets")
    async def sets(n: int) -> None:
        seen.append(tenant.get())
        tenant.set(f"tenant {n}")
        rig.clock.advance(0.001)  # fast, so that they are claimed ahead and follow each other

    handles = [await sets.enqueue(n) for n in range(100)]
    async with rig.worker(concurrency=2):
        for handle in handles:
            await handle.result(60)
    assert set(seen) == {"nobody"}


async def test_interrupted_before_its_first_step_a_job_never_starts(rig: Rig) -> None:
    gate = Gate(rig)
    await gate.task.enqueue(1)
    verdicts: list[Verdict] = []
    means = Means(clock=rig.time, chance=SeededChance(1))
    crew = Crew(rig.app.tasks, means, None, verdicts.append, (), 1)
    crew.accept([await rig.claim()])
    assert len(crew.runs) == 1
    crew.close()
    crew.interrupt("shutdown")
    await asyncio.wait_for(crew.emptied(), 60)
    assert [(verdict.kind, verdict.started) for verdict in verdicts] == [("give_back", False)]
    assert gate.ran == []


@pytest.mark.parametrize(("again", "started"), [(1, True), (2, False)])
async def test_what_comes_back_while_it_still_runs_here_is_given_back(
    rig: Rig, again: int, started: bool
) -> None:
    """Counted again, it has not started; if its claim was taken back by a power cut, it has.

    What has not started opens its lane for the next, beside the run that goes on here.
    """
    gate = Gate(rig)
    await gate.task.enqueue(1)
    verdicts: list[Verdict] = []
    means = Means(clock=rig.time, chance=SeededChance(1))
    crew = Crew(rig.app.tasks, means, None, verdicts.append, (), 2)
    claim = await rig.claim()
    crew.accept([claim])
    await until(lambda: gate.running == [1])
    newer = Claim(replace(claim.job, attempt=again), b"newer")
    crew.accept([newer])
    assert [(each.claim, each.kind, each.started) for each in verdicts] == [
        (newer, "give_back", started)
    ]
    crew.settled(verdicts)
    assert (list(crew.runs), gate.ran) == ([claim.job.id], [1])
    gate.open.set()
    crew.close()
    await asyncio.wait_for(crew.emptied(), 60)
