"""1. A function becomes a task: call it now, or enqueue it and let a worker run it."""

from __future__ import annotations

from outlast import Outlast

# The app knows where jobs live. `memory://` forgets everything when the program ends; with
# `sqlite:///shop.db` nothing that was accepted is ever lost. The rest stays the same.
app = Outlast("memory://")


@app.task
async def greet(name: str, *, loudly: bool = False) -> str:
    text = f"Hello {name}"
    return text.upper() if loudly else text


async def test_a_task_is_still_a_function() -> None:
    """Calling it runs it here and now, which is all that a unit test of it needs."""
    assert await greet("Ann") == "Hello Ann"
    assert await greet("Ann", loudly=True) == "HELLO ANN"


async def test_enqueue_it_and_a_worker_runs_it() -> None:
    async with app:
        # When this returns, the job is stored. Its arguments are checked here, not later.
        handle = await greet.enqueue("Bob", loudly=True)

        # Usually the worker is another process: `outlast worker shop:app`. One that runs inside
        # this program does the same.
        async with app.worker():
            assert await handle.result(timeout=60) == "HELLO BOB"


async def test_enqueue_first_and_start_the_worker_whenever() -> None:
    async with app:
        handles = [await greet.enqueue(name) for name in ("Ann", "Bob", "Cid")]
    async with app.worker():
        greetings = [await handle.result(timeout=60) for handle in handles]
    assert greetings == ["Hello Ann", "Hello Bob", "Hello Cid"]
