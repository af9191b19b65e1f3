"""2. What comes back: the value the task returned, or an error that says what became of the job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import pytest

from outlast import EncodeError, JobFailed, JobNotFound, Outlast, Status

app = Outlast("memory://")


@dataclass
class Invoice:
    number: int
    day: date
    lines: list[tuple[str, int]]


@app.task
async def write_invoice(number: int, day: date) -> Invoice:
    return Invoice(number, day, [("nails", 100), ("hammer", 1)])


@app.task
async def divide(a: int, b: int) -> float:
    return a / b


async def test_a_result_is_what_the_annotation_says() -> None:
    """Arguments and results travel as JSON, and come back as dates, tuples and dataclasses."""
    async with app.worker():
        handle = await write_invoice.enqueue(7, date(2024, 2, 29))
        invoice = await handle.result(timeout=60)
    assert invoice == Invoice(7, date(2024, 2, 29), [("nails", 100), ("hammer", 1)])


async def test_wrong_arguments_are_refused_when_they_are_enqueued() -> None:
    async with app:
        with pytest.raises(EncodeError, match="'day'"):
            await write_invoice.enqueue(7, "29 February")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="'b'"):
            await divide.enqueue(1)  # type: ignore[call-arg]


async def test_a_task_that_raises_is_a_dead_job() -> None:
    """Nobody's exception class is rebuilt from the store: the failure is text."""
    async with app.worker():
        handle = await divide.enqueue(1, 0)
        with pytest.raises(JobFailed, match="ZeroDivisionError: division by zero") as caught:
            await handle.result(timeout=60)
        assert await handle.status() is Status.DEAD
    failure = caught.value.failure
    assert failure is not None
    assert failure.kind == "error"
    assert "return a / b" in failure.traceback


async def test_waiting_too_long_changes_nothing() -> None:
    async with app:
        handle = await divide.enqueue(8, 2)
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.01)  # no worker is running
        async with app.worker():
            assert await handle.result(timeout=60) == 4.0


async def test_an_id_is_enough_to_find_a_job_again() -> None:
    async with app.worker():
        handle = await divide.enqueue(9, 3)
        kept = handle.id  # put it into a session, a database, an e-mail
        assert await app.handle(kept).result(timeout=60) == 3.0
        with pytest.raises(JobNotFound):
            await app.handle("no-such-job").result(timeout=60)
