"""8. Without async: plain functions as tasks, and programs that have no event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from outlast import Outlast

app = Outlast("memory://")


@app.task
def checksum(text: str) -> int:
    """Runs in a thread of the worker, so it may block."""
    assert threading.current_thread() is not threading.main_thread()
    return sum(text.encode())


async def test_a_plain_function_is_a_task_too() -> None:
    async with app.worker():
        assert await (await checksum.enqueue("abc")).result(timeout=60) == 294


@app.task(processes=True, timeout=10)
def crunch(numbers: list[int]) -> tuple[int, int]:
    """Runs in a process of its own: it hurts nobody, and can be killed when its time is up."""
    return os.getpid(), sum(number * number for number in numbers)


async def test_heavy_work_in_a_process_of_its_own() -> None:
    async with app.worker():
        process, total = await (await crunch.enqueue([1, 2, 3])).result(timeout=60)
    assert total == 14
    assert process != os.getpid()


async def test_synchronous_callers_in_threads() -> None:
    """The views of a web program, say: the worker's loop is in another thread."""

    def view(text: str) -> int:
        return checksum.enqueue_sync(text).result_sync(timeout=60)

    async with app.worker():
        with ThreadPoolExecutor(10) as threads:
            futures = [threads.submit(view, letter) for letter in "abcdefghij"]
            answers = [await asyncio.wrap_future(future) for future in futures]
    assert answers == [ord(letter) for letter in "abcdefghij"]


def test_a_script_needs_no_event_loop_at_all() -> None:
    """The app opens itself in the background, and closes at the end of the program."""
    handle = checksum.enqueue_sync("abc")
    assert handle.created
    with pytest.raises(TimeoutError):
        handle.result_sync(timeout=0.01)  # nobody works on it yet


async def test_where_a_loop_is_running_await_instead() -> None:
    with pytest.raises(RuntimeError, match="await"):
        checksum.enqueue_sync("abc")
