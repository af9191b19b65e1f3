"""Draining, inline runs, what was enqueued, and planted crashes."""

from __future__ import annotations

import pytest

from outlast import ConfigurationError, JobFailed, Outlast, Retry, RetryPolicy, StoreClosed, current
from outlast.job import Status
from outlast.testing import (
    POINTS,
    FakeClock,
    assert_enqueued,
    drain,
    enqueued,
    in_memory,
    inline,
    kill_after,
)

app = Outlast("sqlite:///never-made.db")
done: list[str] = []


@app.task(name="greet")
async def greet(name: str, loudly: bool = False) -> str:
    done.append(name)
    return name.upper() if loudly else name


@app.task(name="plain")
def plain(number: int) -> int:
    done.append(str(number))
    return number + 1


@app.task(name="family")
async def family(names: list[str]) -> None:
    for name in names:
        await greet.enqueue(name)


@app.task(name="stubborn", retry=RetryPolicy(attempts=3))
async def stubborn() -> int:
    if current().attempt < 3:
        raise Retry(delay=600)
    return current().attempt


@app.task(name="broken")
async def broken() -> None:
    raise ValueError("no")


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()


async def test_drain_runs_what_is_due_and_what_follows() -> None:
    async with in_memory(app):
        handle = await greet.enqueue("ada", loudly=True)
        await family.enqueue(["bob", "cleo"])
        number = await plain.enqueue(1)
        assert not done
        ended = await drain(app)
        assert [job.task for job in ended] == ["greet", "family", "plain", "greet", "greet"]
        assert (await handle.result(), await number.result()) == ("ADA", 2)
        assert done == ["ada", "1", "bob", "cleo"]
        assert await drain(app) == []


async def test_each_time_is_an_empty_store() -> None:
    async with in_memory(app):
        await greet.enqueue("ada")
    async with in_memory(app):
        assert await drain(app) == []
    with pytest.raises(StoreClosed):
        await greet.enqueue("ada")


async def test_delays_wait_for_the_clock() -> None:
    clock = FakeClock()
    async with in_memory(app, clock=clock):
        await greet.using(delay=3600).enqueue("later")
        handle = await stubborn.enqueue()
        assert await drain(app) == []
        clock.advance(600)
        assert await drain(app) == []
        before = clock.now()
        ended = await drain(app, delayed=clock)
        assert {job.task for job in ended} == {"greet", "stubborn"}
        assert await handle.result() == 3
        assert clock.now() - before == pytest.approx(3000, abs=1)


async def test_inline() -> None:
    async with in_memory(app):
        with inline(app):
            handle = await greet.enqueue("ada")
            assert done == ["ada"]
            assert await handle.result() == "ada"
            await family.enqueue(["bob"])
            assert done == ["ada", "bob"]
            with pytest.raises(JobFailed, match="no"):
                await (await broken.enqueue()).result()
        await greet.enqueue("later")
        assert done == ["ada", "bob"]


async def test_what_was_enqueued() -> None:
    async with in_memory(app):
        await greet.enqueue("ada")
        await greet.using(delay=60, queue="mail").enqueue("bob", loudly=True)
        assert [each.args for each in await enqueued(app)] == [("ada",), ("bob", True)]
        found = await assert_enqueued(app, greet, "bob", True)
        assert found.job.queue == "mail"
        await assert_enqueued(app, greet, name="ada")
        with pytest.raises(AssertionError, match="waiting: greet"):
            await assert_enqueued(app, greet, "cleo")
        await greet.enqueue("ada")
        with pytest.raises(AssertionError, match="2 calls"):
            await assert_enqueued(app, greet, "ada")


@pytest.mark.parametrize(
    ("point", "runs"), [("claimed", 1), ("started", 1), ("returned", 2), ("settled", 1)]
)
async def test_a_planted_crash(point: str, runs: int) -> None:
    async with in_memory(app):
        handle = await greet.enqueue("ada")
        with kill_after(point):  # type: ignore[arg-type]
            await drain(app)
        await drain(app)
        assert await handle.status() is Status.DONE
        assert len(done) == runs
        assert (await handle.job()).crashes == 0
        attempts = {"claimed": 1, "settled": 1}.get(point, 2)
        assert (await handle.job()).attempt == attempts


async def test_crashes_that_can_not_be() -> None:
    with pytest.raises(ConfigurationError, match="claimed"), kill_after("nowhere"):  # type: ignore[arg-type]
        pass
    async with in_memory(app):
        with pytest.raises(AssertionError, match="'returned'"), kill_after(POINTS[2]):
            await drain(app)


async def test_not_while_the_app_is_open() -> None:
    async with in_memory(app):
        with pytest.raises(ConfigurationError, match="open"):
            async with in_memory(app):
                pass
