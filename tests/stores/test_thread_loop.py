"""Calls that are handed to a thread with a loop: in their order, and whatever one of them does."""

from __future__ import annotations

import asyncio
import errno
import importlib
import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from outlast.stores.thread_loop import ThreadLoop

if TYPE_CHECKING:
    from collections.abc import Iterator


def _none(*_: object) -> int:
    raise OSError(errno.EMFILE, "no descriptor is left")


@pytest.fixture(params=["descriptor", "none left", "no such thing"])
def thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadLoop]:
    if request.param == "none left":
        monkeypatch.setattr(os, "eventfd", _none, raising=False)
    elif request.param == "no such thing":
        monkeypatch.delattr(os, "eventfd", raising=False)
    made = ThreadLoop("outlast-test")
    made.start()
    yield made
    if not made.loop.is_closed():
        made.end()


def done(thread: ThreadLoop) -> None:
    """Return when all that was handed over has been called."""
    called = threading.Event()
    thread.soon(called.set)
    assert called.wait(60)


def test_in_their_order_from_many_threads(thread: ThreadLoop) -> None:
    found: list[tuple[int, int]] = []
    where: set[bool] = set()

    def call(mine: int, n: int) -> None:
        found.append((mine, n))
        where.add(thread.is_here)

    def hand_over(mine: int) -> None:
        for n in range(500):
            thread.soon(call, mine, n)

    threads = [threading.Thread(target=hand_over, args=(mine,)) for mine in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    done(thread)
    for mine in range(4):
        assert [n for who, n in found if who == mine] == list(range(500))
    assert where == {True}
    assert not thread.is_here


def test_one_that_fails_is_told_of_and_the_others_are_called(thread: ThreadLoop) -> None:
    told: list[Any] = []
    found: list[int] = []
    busy, go = threading.Event(), threading.Event()
    thread.loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    thread.soon(busy.set)
    thread.soon(go.wait, 60)
    assert busy.wait(60)
    for n in range(3):  # all of them in one go
        thread.soon(_fail if n == 1 else found.append, n)
    go.set()
    done(thread)
    assert found == [0, 2]
    assert [str(error) for error in told] == ["1"]


def _fail(n: int) -> None:
    raise ValueError(n)


def test_one_that_hands_over_another(thread: ThreadLoop) -> None:
    found: list[int] = []

    def again(left: int) -> None:
        found.append(left)
        if left:
            thread.soon(again, left - 1)

    thread.soon(again, 9)
    done(thread)
    while found[-1]:  # each may come a turn later
        done(thread)
    assert found == list(range(9, -1, -1))


def test_ended_it_takes_nothing_and_holds_nothing(thread: ThreadLoop) -> None:
    fd = thread._fd
    done(thread)
    thread.end()
    with pytest.raises(RuntimeError):
        thread.soon(print)
    if fd >= 0:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


class _Broken:
    """A thread that a signal's handler keeps the caller from reaching, the first time."""

    def __init__(self) -> None:
        self.rings = 0

    def soon(self, call: object, *args: object) -> None:
        self.rings += 1
        if self.rings == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["postgres", "redis", "rabbitmq"])
def test_a_call_that_was_interrupted_leaves_the_next_to_ring(kind: str) -> None:
    """The engine counts as asleep until somebody has rung: or else nobody ever would again."""
    module = importlib.import_module(f"outlast.stores.{kind}.engine")
    engine = object.__new__(module.Engine)
    thread = engine._thread = _Broken()
    engine._gate, engine._asleep = threading.RLock(), True
    engine._closing = engine._over = False
    engine._waiting, engine._writes, engine._others, engine._calls = [], [], [], []
    engine._loop, engine._work = asyncio.new_event_loop(), asyncio.Event()
    hand_over = engine.write if kind == "postgres" else engine.hand_over
    op: Any = SimpleNamespace(writes=True)
    with pytest.raises(KeyboardInterrupt):
        hand_over(op)
    hand_over(op)
    hand_over(op)
    engine._loop.close()
    assert thread.rings == 2


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="this system has no such descriptors")
def test_a_ring_that_was_interrupted_is_rung_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ThreadLoop("outlast-test")
    made.start()
    found: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd_write", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.soon(found.append, 1)
    done(made)
    assert found == [1]
    made.end()


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_descriptor_that_is_not_watched_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ThreadLoop("outlast-test")
    monkeypatch.setattr(made.loop, "add_reader", _none)
    made.start()
    done(made)
    assert made._fd < 0
    made.end()


def test_work_is_done_there(thread: ThreadLoop) -> None:
    async def where() -> bool:
        return asyncio.get_running_loop() is thread.loop

    assert thread.run(where())
