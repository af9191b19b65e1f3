"""Steps of a running task: done once, in loops and side by side; sleeps and events between runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes import FakeClock

from outlast import (
    EncodeError,
    JobFailed,
    Keys,
    LeaseLost,
    Outlast,
    Status,
    StepChanged,
    StoreUnavailable,
    TaskError,
    current,
)
from outlast.access import ledger_of
from outlast.job import Death
from outlast.testing import drain, kill_after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from outlast.steps import Changed

WORKER = "outlast-testing"


@dataclass
class Receipt:
    number: int


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "signed", "sealed"])
async def app(
    request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock
) -> AsyncIterator[Outlast]:
    url = "memory://"
    keys = None
    if request.param != "memory":
        url = f"sqlite:///{tmp_path}/jobs.db?durability=process"
    if request.param in ("signed", "sealed"):
        keys = Keys(current="k", secrets={"k": bytes(32)}, seal=request.param == "sealed")
    app = Outlast(url, clock=clock, keys=keys)
    async with app:
        yield app


async def run_killed(app: Outlast) -> None:
    """A run whose worker dies before it can say that it is done, and the one after it."""
    with kill_after("returned"):
        await drain(app)


async def test_done_once(app: Outlast) -> None:
    charged: list[int] = []
    seen: list[Any] = []

    async def charge(order: int) -> Receipt:
        charged.append(order)
        return Receipt(len(charged))

    @app.task(name="buy")
    async def buy(order: int) -> int:
        receipt = await current().step("charge", charge, order)
        note = await current().step("note", lambda: {"n": [receipt.number]})
        seen.append((receipt, note))
        return int(receipt.number)

    handle = await buy.enqueue(7)
    await run_killed(app)
    await drain(app)
    assert await handle.result(timeout=60) == 1
    assert charged == [7]
    assert seen == [(Receipt(1), {"n": [1]})] * 2


async def test_in_loops_and_side_by_side(app: Outlast) -> None:
    done: list[int] = []
    results: list[list[int]] = []

    async def double(n: int) -> int:
        for _ in range(5 - n):
            await asyncio.sleep(0)
        done.append(n)
        return 2 * n

    @app.task(name="doubles")
    async def doubles() -> None:
        found = [await current().step("double", double, n) for n in range(3)]
        found += await asyncio.gather(*(current().step("double", double, n) for n in range(5)))
        results.append(found)

    await doubles.enqueue()
    await run_killed(app)
    await drain(app)
    assert sorted(done) == [0, 0, 1, 1, 2, 2, 3, 4]
    assert results == [[0, 2, 4, 0, 2, 4, 6, 8]] * 2


async def test_what_failed_is_done_again(app: Outlast) -> None:
    tries: list[str] = []

    def fetch(page: str) -> str:
        tries.append(page)
        if tries.count(page) < 2:
            raise OSError(page)
        return page

    @app.task(name="crawl", retry=5)
    async def crawl() -> list[str]:
        return [await current().step("fetch", fetch, page) for page in "ab"]

    handle = await crawl.enqueue()
    while (await handle.status()) is not Status.DONE:
        await drain(app)
        clock: Any = app.clock
        clock.advance(3600)
    assert tries == ["a", "a", "b", "b"]


async def test_other_arguments_are_an_error_unless_told(app: Outlast) -> None:
    calls: list[int] = []
    rates = iter([1, 2, 2])
    changed: list[Changed] = ["raise"]

    @app.task(name="convert")
    async def convert() -> int:
        await current().step("rate", calls.append, next(rates), changed=changed[0])
        return len(calls)

    handle = await convert.enqueue()
    await run_killed(app)
    with pytest.raises(JobFailed, match=r"StepChanged: step rate#1.*changed=.run"):
        await handle.result(timeout=60)
    changed[0] = "run"
    await ledger_of(app.store).revive([handle.id])
    await drain(app)
    assert calls == [1, 2]
    assert await handle.result(timeout=60) == 2


async def test_in_plain_functions(app: Outlast) -> None:
    charged: list[int] = []

    def charge(order: int) -> Receipt:
        charged.append(order)
        return Receipt(len(charged))

    @app.task(name="buy")
    def buy(order: int) -> int:
        return current().step_sync("charge", charge, order).number

    handle = await buy.enqueue(7)
    await run_killed(app)
    await drain(app)
    assert (await handle.result(timeout=60), charged) == (1, [7])


async def test_a_zombie_s_step_is_refused(app: Outlast) -> None:
    said: list[str] = []

    @app.task(name="slow")
    async def slow() -> None:
        async def lose() -> None:
            if not said:
                death = Death(started=frozenset({current().id}), blamed=frozenset())
                await app.store.recover_worker(WORKER, death)

        with pytest.raises(LeaseLost, match="another worker's") if not said else _nothing():
            said.append("begun")
            await current().step("work", lose)

    await slow.enqueue()
    await drain(app)
    await drain(app)


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


async def test_no_step_is_begun_by_one_who_lost_the_job(app: Outlast) -> None:
    begun: list[int] = []

    @app.task(name="slow")
    async def slow() -> None:
        current().lease_lost = True
        with pytest.raises(LeaseLost):
            await current().step("work", begun.append, 1)
        with pytest.raises(LeaseLost):
            current().step_sync("work", begun.append, 1)

    await slow.enqueue()
    await drain(app)
    assert begun == []


async def test_a_read_that_failed_is_made_again(
    app: Outlast, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = type(app.store)
    recall, left = kind.recall, [StoreUnavailable("away")]

    async def away_once(self: Any, claim: Any) -> Any:
        if left:
            raise left.pop()
        return await recall(self, claim)

    monkeypatch.setattr(kind, "recall", away_once)

    @app.task(name="tries")
    async def tries() -> int:
        with pytest.raises(StoreUnavailable):
            await current().step("one", lambda: 1)
        return int(await current().step("two", lambda: 2))

    handle = await tries.enqueue()
    await drain(app)
    assert await handle.result(timeout=60) == 2


async def test_what_can_t_be_named_or_stored(app: Outlast) -> None:
    @app.task(name="odd")
    async def odd() -> list[str]:
        found = []
        for name in ("", "#x", "x" * 300):
            with pytest.raises(TaskError, match="step name"):
                await current().step(name, dict)
        with pytest.raises(EncodeError, match="the result of the step"):
            await current().step("set", lambda: {1, 2})
        with pytest.raises(TaskError, match="return annotation"):
            await current().step("hint", _badly_annotated)
        found.append(await current().step("none", _none))
        found.append(await current().step("partial", partial(str, 3)))
        # No data among the arguments: compared by its class.
        found.append(await current().step("lock", lambda lock, n: n, asyncio.Lock(), "4"))
        return [str(each) for each in found]

    handle = await odd.enqueue()
    await run_killed(app)
    await drain(app)
    assert await handle.result(timeout=60) == ["None", "3", "4"]


def _none() -> None: ...


def _badly_annotated() -> Missing:  # type: ignore[name-defined]  # noqa: F821
    raise AssertionError("never called")


# -- waits


async def test_sleep_holds_no_worker(app: Outlast, clock: FakeClock) -> None:
    trace: list[str] = []

    @app.task(name="remind")
    async def remind() -> str:
        trace.append("run")
        await current().step("begin", trace.append, "begun")
        await current().sleep(hours=6)
        await current().step("middle", trace.append, "slept")
        await current().sleep(60)
        return "done"

    handle = await remind.enqueue()
    await drain(app)
    assert await handle.status() is Status.QUEUED
    clock.advance(6 * 3600 - 1)
    await drain(app)
    assert trace == ["run", "begun"]
    clock.advance(2)
    await drain(app)
    clock.advance(30)
    await drain(app)
    clock.advance(31)
    await drain(app)
    assert trace == ["run", "begun", "run", "slept", "run"]
    job = await handle.job()
    assert (job.status, job.failures, job.crashes) == (Status.DONE, 0, 0)


async def test_sleep_goes_on_after_a_crash(app: Outlast, clock: FakeClock) -> None:
    @app.task(name="remind")
    async def remind() -> float:
        await current().sleep(100)
        return 1.0

    handle = await remind.enqueue()
    await run_killed(app)
    clock.advance(60)
    await drain(app)
    clock.advance(39)
    assert await drain(app) == []
    clock.advance(2)
    assert len(await drain(app)) == 1
    assert await handle.result(timeout=60) == 1.0


async def test_a_sleep_is_not_prolonged_by_what_a_run_does_before_it(
    app: Outlast, clock: FakeClock
) -> None:
    takes = iter([0, 40, 0])

    @app.task(name="remind")
    async def remind() -> float:
        await current().step("begin", lambda: None)
        clock.advance(next(takes))
        await current().sleep(60)
        return 1.0

    handle = await remind.enqueue()
    await run_killed(app)
    clock.advance(21)
    await drain(app)
    assert await handle.result(timeout=60) == 1.0


async def test_a_sleep_ends_what_runs_beside_it(app: Outlast, clock: FakeClock) -> None:
    ended: list[str] = []

    async def beside() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append("beside")

    @app.task(name="both")
    async def both() -> None:
        if current().attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(beside())
                group.create_task(current().sleep(10))
        ended.append("all")

    await both.enqueue()
    await drain(app)
    assert ended == ["beside"]
    clock.advance(11)
    await drain(app)
    assert ended == ["beside", "all"]


async def test_an_event_before_or_after(app: Outlast, clock: FakeClock) -> None:
    runs: list[int] = []

    @app.task(name="ship")
    async def ship(order: int) -> Any:
        runs.append(order)
        return await current().wait_event(f"paid-{order}")

    assert await app.emit("paid-1", {"by": "ann"})
    assert not await app.emit("paid-1", {"by": "bob"})
    one, two = await ship.enqueue(1), await ship.enqueue(2)
    await drain(app)
    assert await one.result(timeout=60) == {"by": "ann"}
    assert await two.status() is Status.QUEUED
    clock.advance(100 * 86400)
    await drain(app)
    assert runs == [1, 2]
    await app.emit("paid-2", [2])
    await drain(app)
    assert await two.result(timeout=60) == [2]
    assert runs == [1, 2, 2]


async def test_an_event_that_does_not_come_in_time(app: Outlast, clock: FakeClock) -> None:
    said: list[str] = []

    @app.task(name="ask")
    async def ask() -> str:
        try:
            await current().wait_event("answer", timeout=60)
        except TimeoutError as error:
            said.append(str(error))
            # Too late: what was decided stays decided in the run that follows.
            await app.emit("answer", 1)
        return "nobody"

    handle = await ask.enqueue()
    await drain(app)
    clock.advance(61)
    await run_killed(app)
    assert await handle.result(timeout=60) == "nobody"
    assert said == ["no event 'answer' was sent in time"] * 2


async def test_what_an_event_gave_outlives_it(app: Outlast, clock: FakeClock) -> None:
    got: list[Any] = []

    @app.task(name="ask")
    async def ask() -> None:
        got.append(await current().wait_event("answer"))
        await current().sleep(days=30)

    await app.emit("answer", 42, keep=60)
    await ask.enqueue()
    await drain(app)
    clock.advance(31 * 86400)
    await app.store.prune(100)
    await drain(app)
    assert got == [42, 42]


async def test_plain_functions_can_t_wait(tmp_path: Path) -> None:
    app = Outlast(f"sqlite:///{tmp_path}/jobs.db?durability=process")

    @app.task(name="plain")
    def plain() -> str:
        with pytest.raises(TaskError, match="only async def"):
            current().sleep(5).send(None)
        return "went on"

    async with app.worker():
        assert await (await plain.enqueue()).result(timeout=60) == "went on"


async def test_the_fence_and_the_key(app: Outlast) -> None:
    seen: list[tuple[str, int]] = []

    @app.task(name="charge", retry=3)
    async def charge() -> None:
        seen.append((current().idempotency_key, current().fence))

    handle = await charge.enqueue()
    await run_killed(app)
    await drain(app)
    (key, first), (again, second) = seen
    assert key == again == handle.id
    assert first < second


async def test_in_a_real_worker(tmp_path: Path) -> None:
    app = Outlast(f"sqlite:///{tmp_path}/jobs.db?durability=process")
    done: list[int] = []

    @app.task(name="flow")
    async def flow() -> Any:
        await current().step("one", done.append, 1)
        await current().sleep(0.05)
        got = await current().wait_event("go")
        await current().step("two", done.append, 2)
        return got

    @app.task(name="plain")
    def plain() -> int:
        return current().step_sync("three", lambda: 3)

    async with app.worker(concurrency=2):
        handle, other = await flow.enqueue(), await plain.enqueue()
        assert await other.result(timeout=60) == 3
        await app.emit("go", "now")
        assert await handle.result(timeout=60) == "now"
    assert done == [1, 2]


def test_changed_steps_are_job_errors() -> None:
    assert StepChanged.__module__ == "outlast"
