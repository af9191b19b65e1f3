"""How a worker ends: what runs may finish, the rest goes back, and nothing costs an attempt."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.engine.rig import Gate, Rig, until

from outlast import Status, StoreDamaged, StoreUnavailable

if TYPE_CHECKING:
    from outlast.worker.worker import Worker


async def enqueue(gate: Gate, count: int) -> list[str]:
    return [(await gate.task.enqueue(n)).id for n in range(count)]


async def test_an_idle_worker_ends_at_once(rig: Rig) -> None:
    Gate(rig)
    worker = rig.make(grace=30)
    running = asyncio.ensure_future(worker.run())
    await rig.pass_time(1)
    began = time.monotonic()
    worker.stop()
    await running
    assert time.monotonic() - began < 10
    assert rig.clock.sleepers == 0, "nothing is left behind"


async def test_stopped_before_it_runs_it_does_not_run(rig: Rig) -> None:
    worker = rig.make(open_store=rig.spied)
    worker.stop()
    await worker.run()
    assert rig.spies == []


async def test_what_runs_may_end_within_the_grace_time(rig: Rig) -> None:
    gate = Gate(rig)
    ids = await enqueue(gate, 5)
    worker = rig.make(grace=30, concurrency=2)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: len(gate.running) == 2)
    worker.stop()
    await rig.pass_time(20)
    assert gate.running == [0, 1]
    assert not running.done()
    gate.open.set()
    await running
    jobs = [await rig.job(id) for id in ids]
    assert [job.status for job in jobs] == [Status.DONE] * 2 + [Status.QUEUED] * 3
    assert [job.attempt for job in jobs] == [1, 1, 0, 0, 0]


async def test_what_does_not_end_in_time_is_cancelled_and_costs_nothing(rig: Rig) -> None:
    gate = Gate(rig)
    (id,) = await enqueue(gate, 1)
    for attempt in (1, 2, 3):
        worker = rig.make(grace=30)
        running = asyncio.ensure_future(worker.run())
        await until(lambda: gate.running == [0])
        worker.stop()
        await rig.pass_time(29)
        assert gate.running == [0]
        await rig.pass_time(2)
        assert gate.running == []
        await running
        job = await rig.job(id)
        assert (job.status, job.attempt, job.failures) == (Status.QUEUED, attempt, 0)


async def test_a_second_stop_ends_the_grace_time(rig: Rig) -> None:
    gate = Gate(rig)
    (id,) = await enqueue(gate, 1)
    worker = rig.make(grace=3600)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: gate.running == [0])
    worker.stop()
    await rig.pass_time(5)
    assert gate.running == [0]
    worker.stop()
    await running
    assert (await rig.job(id)).status is Status.QUEUED


async def test_cancelling_the_worker_is_a_stop_without_grace(rig: Rig) -> None:
    gate = Gate(rig)
    ids = await enqueue(gate, 3)
    worker = rig.make(grace=3600, concurrency=2)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: len(gate.running) == 2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    jobs = [await rig.job(id) for id in ids]
    assert {job.status for job in jobs} == {Status.QUEUED}
    assert [job.attempt for job in jobs] == [1, 1, 0]


async def test_claims_in_flight_at_the_stop_go_back(rig: Rig) -> None:
    gate = Gate(rig)
    held = asyncio.Event()
    asked = asyncio.Event()

    async def hold(*_: object) -> None:
        asked.set()
        await held.wait()

    rig.before["claim"] = hold
    ids = await enqueue(gate, 3)
    worker = rig.make(open_store=rig.spied, grace=30)
    running = asyncio.ensure_future(worker.run())
    await asked.wait()
    worker.stop()
    await rig.pass_time(1)
    held.set()
    await running
    jobs = [await rig.job(id) for id in ids]
    assert [(job.status, job.attempt) for job in jobs] == [(Status.QUEUED, 0)] * 3
    assert gate.ran == []


async def test_what_was_claimed_ahead_goes_back_at_the_stop(rig: Rig) -> None:
    gate = Gate(rig)

    @rig.app.task(name="tick")
    async def tick() -> None:
        rig.clock.advance(0.001)

    for _ in range(200):
        await tick.enqueue()
    ids = await enqueue(gate, 40)
    worker = rig.make(grace=30, concurrency=2)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: len(gate.running) == 2)
    held = await rig.ledger.find(status=[Status.RUNNING])
    assert len(held) > 2, "some were claimed ahead"
    gate.open.set()
    worker.stop()
    await running
    jobs = [await rig.job(id) for id in ids]
    assert {(job.status, job.attempt) for job in jobs} == {(Status.DONE, 1), (Status.QUEUED, 0)}


async def test_a_task_that_swallows_the_cancel_is_left_behind(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    let_go = asyncio.Event()
    entered = asyncio.Event()

    @rig.app.task(name="deaf")
    async def deaf() -> None:
        entered.set()
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                pass

    handle = await deaf.enqueue()
    worker = rig.make(grace=1)
    running = asyncio.ensure_future(worker.run())
    await entered.wait()
    worker.stop()
    await rig.let_end(running)
    assert worker.stuck == [handle.id]
    assert "would not end" in caplog.text
    let_go.set()
    # Nothing was said of it: its lease runs out, and another worker takes it.
    assert await handle.status() is Status.RUNNING


@pytest.mark.parametrize(
    "method", ["claim", "settle", "renew", "recover", "prune", "wait", "beat", "lines", "leave"]
)
async def test_a_store_that_fails_for_good_ends_the_worker(rig: Rig, method: str) -> None:
    def broken(*_: object) -> None:
        raise StoreDamaged("the file is not a database")

    rig.before = {method: broken}
    gate = Gate(rig)
    ids = await enqueue(gate, 2)
    gate.doors[0].set()
    worker = rig.make(open_store=rig.spied, grace=30)
    running = asyncio.ensure_future(worker.run())
    if method == "leave":
        await until(lambda: gate.running == [1])
        worker.stop()
    await rig.clock.run(running, 60)
    if method == "leave":
        await running  # it had ended in order before that
    else:
        with pytest.raises(StoreDamaged):
            await running
    assert gate.running == [], "nothing goes on without a worker"
    gate.open.set()
    async with rig.worker():
        await rig.pass_time(40)
    assert [(await rig.job(id)).status for id in ids] == [Status.DONE] * 2


async def test_a_store_that_is_away_at_the_end_is_not_waited_for_for_ever(rig: Rig) -> None:
    gate = Gate(rig)
    (id,) = await enqueue(gate, 1)

    def away(*_: object) -> None:
        raise StoreUnavailable("no route")

    worker = rig.make(open_store=rig.spied, grace=30)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: gate.running == [0])
    rig.before = {"settle": away}
    for spy in rig.spies:
        spy._before = rig.before
    gate.open.set()
    worker.stop()
    await rig.let_end(running)
    assert (await rig.job(id)).status is Status.RUNNING


async def test_a_store_that_cannot_be_opened_ends_the_worker(rig: Rig) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("no route")

    rig.before = {"open": away}
    with pytest.raises(StoreUnavailable):
        await rig.make(open_store=rig.spied).run()


async def test_it_is_ready_only_when_every_part_of_it_has_its_store(rig: Rig) -> None:
    """A store that goes away comes back to those who had opened it; opening it then would fail."""
    let_go, opens, ready = asyncio.Event(), count(), asyncio.Event()

    async def hold_the_second() -> None:
        if next(opens) == 1:
            await let_go.wait()

    async def say_ready(worker: Worker) -> None:
        ready.set()

    rig.before["open"] = hold_the_second
    worker = rig.make(before_claims=say_ready, open_store=rig.spied)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: len(rig.spies) == 2 and rig.spies[1].calls["open"])
    await rig.pass_time(1)
    assert not ready.is_set()
    let_go.set()
    await until(ready.is_set)
    worker.stop()
    await running
