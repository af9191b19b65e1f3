"""Random calls on asyncio's queue and on ours, side by side: the same answers in the same order."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import outlast

HAS_SHUTDOWN = hasattr(asyncio.Queue, "shutdown")
KINDS = ["Queue", "PriorityQueue", "LifoQueue"]
numbers = itertools.count()

values = st.integers(0, 5)
calls = st.one_of(
    st.tuples(st.just("put_nowait"), values),
    st.tuples(st.just("get_nowait")),
    st.tuples(st.just("get_nowait")),
    st.tuples(st.just("task_done")),
    *([st.tuples(st.just("shutdown"), st.booleans())] if HAS_SHUTDOWN else []),
)


def make(kind: str, maxsize: int, commit: str) -> tuple[Any, Any]:
    theirs = getattr(asyncio, kind)(maxsize)
    mine = getattr(outlast, kind)(maxsize, name="model", url="memory://", commit=commit)
    return theirs, mine


def answer(queue: Any, name: str, *arguments: Any) -> Any:
    try:
        return getattr(queue, name)(*arguments)
    except (asyncio.QueueEmpty, asyncio.QueueFull, outlast.QueueShutDown, ValueError) as error:
        return type(error).__name__


def state(queue: Any) -> tuple[Any, ...]:
    return queue.qsize(), queue.empty(), queue.full(), queue._unfinished_tasks


@pytest.mark.parametrize("commit", ["group", "each"])
@pytest.mark.parametrize("kind", KINDS)
@given(script=st.lists(calls, max_size=40), maxsize=st.sampled_from([0, 1, 3]))
@settings(max_examples=60)
def test_calls_without_a_loop(
    kind: str, commit: str, script: list[tuple[Any, ...]], maxsize: int
) -> None:
    theirs, mine = make(kind, maxsize, commit)
    for name, *arguments in script:
        assert answer(mine, name, *arguments) == answer(theirs, name, *arguments), name
        assert state(mine) == state(theirs), name
    mine._line.close_now()


WOKEN_TOO_LATE: list[tuple[Any, ...]] = [
    ("get",), ("put", 0), ("put", 0), ("get",), ("get",), ("round",), ("round",), ("round",),
]  # fmt: skip
"""The first getter is overtaken, and goes to the end of the line."""

steps = st.one_of(
    st.tuples(st.just("put"), values),
    st.tuples(st.just("get")),
    st.tuples(st.just("join")),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("round")),
    st.tuples(st.just("round")),
    calls,
)


async def play(queue: Any, script: list[tuple[Any, ...]]) -> list[Any]:
    """What can be seen after each step; tasks are named by the order in which they began."""
    seen: list[Any] = []
    tasks: list[asyncio.Task[Any]] = []
    for name, *arguments in script:
        if name in ("put", "get", "join"):
            tasks.append(asyncio.ensure_future(getattr(queue, name)(*arguments)))
        elif name == "cancel":
            if tasks:
                tasks[arguments[0] % len(tasks)].cancel()
        elif name == "round":
            await asyncio.sleep(0)
        else:
            seen.append((name, answer(queue, name, *arguments)))
        seen.append((name, state(queue), [outcome(task) for task in tasks]))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


def outcome(task: asyncio.Task[Any]) -> Any:
    if not task.done():
        return "waits"
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    return type(error).__name__ if error else ("gave", task.result())


@pytest.mark.parametrize("kind", KINDS)
@given(script=st.lists(steps, max_size=40), maxsize=st.sampled_from([0, 1, 3]))
@example(script=WOKEN_TOO_LATE, maxsize=1)
@settings(max_examples=100)
def test_tasks_round_by_round(kind: str, script: list[tuple[Any, ...]], maxsize: int) -> None:
    """With commit="each" nothing takes a round of the loop more or less than with asyncio."""
    theirs, mine = make(kind, maxsize, "each")
    expected = asyncio.run(play(theirs, script))
    found = asyncio.run(play(mine, script))
    mine._line.close_now()
    assert found == expected
