"""4. When a run fails: how often to try, how late, and how a task steers that itself."""

from __future__ import annotations

from collections import Counter

import pytest

from outlast import Cancel, JobCancelled, JobFailed, Outlast, Retry, RetryPolicy, Snooze, current

app = Outlast("memory://")
runs: Counter[str] = Counter()

# Three runs at most, with pauses of 0.01 and 0.02 seconds. In earnest, leave the jitter on.
thrice = RetryPolicy(attempts=3, delay=0.01, jitter=False)


@pytest.fixture(autouse=True)
def _count_anew() -> None:
    runs.clear()


@app.task(retry=thrice)
async def flaky(works_at: int) -> int:
    runs["flaky"] += 1
    if current().attempt < works_at:
        raise ConnectionError("no answer")
    return current().attempt


async def test_it_is_tried_again() -> None:
    async with app.worker():
        assert await (await flaky.enqueue(3)).result(timeout=60) == 3
    assert runs["flaky"] == 3


async def test_until_its_attempts_are_spent() -> None:
    async with app.worker():
        handle = await flaky.enqueue(99)
        with pytest.raises(JobFailed, match=r"after 3 runs .*ConnectionError: no answer"):
            await handle.result(timeout=60)


async def test_one_call_may_have_more_of_them() -> None:
    async with app.worker():
        handle = await flaky.using(retry=5).enqueue(5)
        assert await handle.result(timeout=60) == 5


@app.task(retry=RetryPolicy(attempts=5, delay=0, on=(ConnectionError,)))
async def picky(error: str) -> None:
    runs["picky"] += 1
    raise {"connection": ConnectionError, "value": ValueError}[error]


async def test_only_some_errors_are_worth_another_try() -> None:
    async with app.worker():
        with pytest.raises(JobFailed, match="ValueError"):
            await (await picky.enqueue("value")).result(timeout=60)
    assert runs["picky"] == 1


@app.task(retry=3)
async def steered(how: str) -> str:
    runs[how] += 1
    if how == "retry" and current().attempt == 1:
        raise Retry(delay=0.01)  # counts as a failure
    if how == "snooze" and runs[how] < 10:
        raise Snooze(0.001)  # costs nothing: not now
    if how == "cancel":
        raise Cancel("the order is gone")  # for good, and no failure
    return "done"


async def test_a_task_may_steer() -> None:
    async with app.worker():
        assert await (await steered.enqueue("retry")).result(timeout=60) == "done"
        assert await (await steered.enqueue("snooze")).result(timeout=60) == "done"
        with pytest.raises(JobCancelled, match="the order is gone"):
            await (await steered.enqueue("cancel")).result(timeout=60)
    assert runs == {"retry": 2, "snooze": 10, "cancel": 1}
