"""The background loop that serves synchronous callers: one thread, one store, no hanging."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, cast

import pytest
from tests.proof.patience import until

from outlast import StoreClosed, StoreUnavailable
from outlast.bridge import Bridge, Interrupted, _Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.store import Store


class Place:
    """As much of a store as the bridge touches; notes in which thread."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.opened: list[int] = []
        self.closed: list[int] = []

    async def open(self) -> None:
        if self.fails:
            raise StoreUnavailable("not today")
        self.opened.append(threading.get_ident())

    async def close(self) -> None:
        self.closed.append(threading.get_ident())


class Places:
    """Hands out places, as ``connect`` does, and remembers them."""

    def __init__(self, *fails: bool) -> None:
        self._fails = iter(fails)
        self.made: list[Place] = []

    def __call__(self) -> Store:
        place = Place(fails=next(self._fails, False))
        self.made.append(place)
        return cast("Store", place)


@pytest.fixture
def places() -> Places:
    return Places()


@pytest.fixture
def bridge(places: Places) -> Iterator[Bridge]:
    bridge = Bridge(places)
    yield bridge
    bridge.stop()


async def whoami(store: Store) -> tuple[int, int]:
    return threading.get_ident(), id(asyncio.get_running_loop())


def test_nothing_starts_before_it_is_needed(bridge: Bridge, places: Places) -> None:
    assert not bridge.running
    assert places.made == []


def test_fifty_threads_share_one_loop_and_one_store(bridge: Bridge, places: Places) -> None:
    together = threading.Barrier(50)

    def ask(_: int) -> tuple[int, int]:
        together.wait()
        return bridge.run(whoami, "")

    with ThreadPoolExecutor(50) as threads:
        answers = set(threads.map(ask, range(50)))
    assert len(answers) == 1
    assert len(places.made) == 1
    assert places.made[0].opened == [answers.pop()[0]]


def test_a_thread_with_a_running_loop_is_told_to_await(bridge: Bridge) -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="await it instead"):
            bridge.run(whoami, "await it instead")
        assert not bridge.running

    asyncio.run(main())


def test_a_thread_beside_a_running_loop_may_wait(bridge: Bridge) -> None:
    async def main() -> tuple[int, int]:
        return await asyncio.to_thread(bridge.run, whoami, "")

    assert asyncio.run(main())[0] != threading.get_ident()


def test_what_the_work_raises_reaches_the_caller(bridge: Bridge) -> None:
    async def fail(store: Store) -> None:
        raise LookupError("here")

    with pytest.raises(LookupError, match="here"):
        bridge.run(fail, "")
    assert bridge.run(whoami, "")


def test_a_store_that_does_not_open_is_tried_again_by_the_next_call() -> None:
    places = Places(True)
    bridge = Bridge(places)
    with pytest.raises(StoreUnavailable, match="not today"):
        bridge.run(whoami, "")
    assert places.made[0].closed
    assert bridge.run(whoami, "")
    assert len(places.made) == 2
    bridge.stop()


def test_stop_closes_the_store_in_its_own_loop_and_the_next_call_starts_anew(
    bridge: Bridge, places: Places
) -> None:
    thread, _ = bridge.run(whoami, "")
    bridge.stop()
    assert places.made[0].closed == [thread]
    assert not bridge.running
    bridge.stop()
    bridge.run(whoami, "")
    assert len(places.made) == 2


def test_stop_interrupts_whoever_waits(bridge: Bridge) -> None:
    waiting = threading.Event()

    async def wait(store: Store) -> None:
        waiting.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(bridge.run, wait, "")
        waiting.wait(60)
        bridge.stop()
        with pytest.raises(Interrupted) as caught:
            answer.result(60)
    assert isinstance(caught.value, StoreClosed)


def test_many_that_call_while_it_stops_get_an_answer_or_an_error(bridge: Bridge) -> None:
    """Nobody may hang: not who comes before the stop, nor after it, nor in between."""

    def ask(_: int) -> bool:
        try:
            bridge.run(whoami, "")
        except StoreClosed:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        answers = [threads.submit(ask, n) for n in range(200)]
        for _ in range(20):
            bridge.stop()
        assert sum(answer.result(60) for answer in answers) > 0


def waits_for_a_future(thread: int) -> bool:
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code is Future.result.__code__:
            return True
        frame = frame.f_back
    return False


def test_an_interrupt_from_the_keyboard_cancels_the_work(bridge: Bridge) -> None:
    started, cancelled = threading.Event(), threading.Event()
    main = threading.main_thread()
    assert main.ident == threading.get_ident()

    async def wait(store: Store) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def press() -> None:
        started.wait(60)
        while not waits_for_a_future(main.ident or 0):
            pass
        signal.pthread_kill(main.ident or 0, signal.SIGINT)

    finger = threading.Thread(target=press)
    # In the background of a shell the signal is ignored, unless someone asks for it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        finger.start()
        with pytest.raises(KeyboardInterrupt):
            bridge.run(wait, "")
    finally:
        signal.signal(signal.SIGINT, before)
    finger.join()
    assert cancelled.wait(60)


def test_a_forgotten_bridge_takes_its_thread_with_it() -> None:
    places = Places()
    bridge = Bridge(places)
    ident, _ = bridge.run(whoami, "")
    (thread,) = [each for each in threading.enumerate() if each.ident == ident]
    del bridge
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
    assert places.made[0].closed


def test_stopping_a_loop_that_has_ended_by_itself() -> None:
    """As when the app is closed while the store fails to open."""
    line = _Line(cast("Store", Place(fails=True)))
    assert isinstance(line.opened.exception(60), StoreUnavailable)
    line._thread.join(60)
    line.stop()
    with pytest.raises(StoreClosed, match="nothing was sent"):
        line.submit(whoami)


def test_calls_that_fail_leave_nothing_behind() -> None:
    places = Places(*[True] * 5)
    bridge = Bridge(places)
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            bridge.run(whoami, "")
    assert not bridge.running
    gone = [weakref.ref(place) for place in places.made]
    places.made.clear()

    def few_are_left() -> bool:
        gc.collect()
        # The last one may still be seen from the exception that pytest keeps.
        return sum(place() is not None for place in gone) <= 1

    # Each failed in a thread of its own, which may need a moment to end.
    until(few_are_left, 60.0, "they are let go")


PROGRAM = """
import os, sys, threading
from outlast.bridge import Bridge

class Place:
    async def open(self): print("open", os.getpid() == main, flush=True)
    async def close(self): print("close", os.getpid() == main, flush=True)

async def answer(store):
    return threading.get_ident()

main = os.getpid()
bridge = Bridge(Place)
"""


def run_program(text: str) -> list[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM + text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_store_is_closed_when_the_program_ends() -> None:
    assert run_program("bridge.run(answer, '')") == ["open True", "close True"]


def test_a_forked_child_starts_its_own_and_leaves_the_parent_s_alone() -> None:
    forked = """
first = bridge.run(answer, '')
child = os.fork()
if not child:
    bridge.run(answer, '')
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert bridge.run(answer, '') == first
"""
    assert run_program(forked) == [
        "open True", "open False", "close False", "close True",
    ]  # fmt: skip


def test_a_lock_that_another_thread_holds_at_a_fork_is_not_inherited() -> None:
    forked = """
held, release = threading.Event(), threading.Event()
def hold():
    with bridge._lock, bridge._line._lock:
        held.set()
        release.wait()
bridge.run(answer, '')
holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if not child:
    sys.stdout = open(os.devnull, "w")
    bridge.run(answer, '')
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
release.set()
holder.join()
"""
    assert run_program(forked) == ["open True", "close True"]


def test_a_fork_while_another_thread_calls_leaves_no_lock_behind() -> None:
    forked = """
stop = threading.Event()
def calls():
    while not stop.is_set():
        bridge.run(answer, '')
threads = [threading.Thread(target=calls) for _ in range(4)]
for thread in threads: thread.start()
for _ in range(20):
    child = os.fork()
    if not child:
        sys.stdout = open(os.devnull, "w")
        bridge.run(answer, '')
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
for thread in threads: thread.join()
"""
    assert run_program(forked) == ["open True", "close True"]
