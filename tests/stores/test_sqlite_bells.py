"""Processes wake each other at once and without polling; the dead leave nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import job
from tests.proof.patience import until
from tests.stores.children import Child, listen, say

from outlast.errors import StoreUnavailable
from outlast.job import Failure, dead, done, give_back
from outlast.stores.news import ENDED
from outlast.stores.sqlite import files
from outlast.stores.sqlite.bell import Bell
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


SOON = 10.0
"""Seconds: far less than any wait here would last by itself, far more than a wake-up takes."""


def bells(db: Path) -> list[Path]:
    return sorted(files.companion(str(db)).glob("*.bell"))


def works(path: str) -> None:
    """In a child: a worker that waits 30 s at a time, and says when it has got a job."""

    async def work() -> None:
        store = SqliteStore(path)
        await store.open()
        said = False
        while True:
            for claim in await store.claim(["default"], [None], 1, 60, "w"):
                say([claim.job.id, time.monotonic()])
                await store.settle([done(claim, b'"yes"')])
            if not said:
                say("idle")
                said = True
            await store.wait(["default"], 30)

    asyncio.run(work())


def test_a_waiting_process_is_woken_by_another(db: Path, opened: Opener) -> None:
    store = opened(db)
    with Child(works, path=str(db)) as child:
        assert child.hear() == "idle"
        for n in range(5):
            began = time.monotonic()
            store.add_now([job(f"job-{n}")])
            got, moment = child.hear(60)
            assert got == f"job-{n}"
            assert moment - began < SOON


def test_a_way_to_others_that_was_closed_behind_its_back_is_found_anew(tmp_path: Path) -> None:
    """Other code of the process may close what is not its own; who committed is not to fail."""
    os.mkfifo(tmp_path / "other.bell")
    ear = os.open(tmp_path / "other.bell", os.O_RDWR | os.O_NONBLOCK)
    bell = Bell(tmp_path, "own", refuse)
    try:
        bell.ring(ENDED)
        assert os.read(ear, 10) == bytes([ENDED])
        for descriptor in bell._others.values():
            os.close(descriptor)
        bell.ring(ENDED)
        bell.ring(ENDED)
        assert os.read(ear, 10) == bytes([ENDED])
    finally:
        bell.close()
        os.close(ear)


async def test_whoever_awaits_a_result_is_woken_by_another_process(
    db: Path, opened: Opener
) -> None:
    store = opened(db)
    with Child(works, path=str(db)) as child:
        assert child.hear() == "idle"
        for n in range(3):
            await store.add([job(f"job-{n}")])
            began = time.monotonic()
            [found] = await store.finished([f"job-{n}"], 30)
            assert found.result == b'"yes"'
            assert time.monotonic() - began < SOON


def gives_back(path: str) -> None:
    """In a child: does to jobs what makes others claimable or ends them, one word at a time."""
    store = SqliteStore(path)
    store.open_now()
    say("ready")
    while word := listen():
        [claim] = store.claim_now(["default"], [None], 1, 60, "w")
        if word == "back":
            store.settle_now([give_back(claim)])
        elif word == "dead":
            store.settle_now([dead(claim, Failure(kind="error"))])
        say(word)


async def begun(store: SqliteStore, word: str) -> asyncio.Future[object]:
    """A call that waits for such news; it may have returned early a few times before."""
    while True:
        task: asyncio.Future[object]
        if word == "dead":
            task = asyncio.ensure_future(store.finished(["a"], 30))
        else:
            task = asyncio.ensure_future(store.wait(["default"], 30, space=word == "claim"))
        if not (await asyncio.wait((task,), timeout=0.1))[0]:
            return task


@pytest.mark.parametrize("word", ["back", "dead", "claim"])
async def test_every_kind_of_news_reaches_the_other_process(
    db: Path, opened: Opener, word: str
) -> None:
    store = opened(db)
    await store.add([job("a")])
    if word == "back":
        await store.pause("default")  # so that this one finds nothing, yet waits for work
    with Child(gives_back, path=str(db)) as child:
        assert child.hear() == "ready"
        if word == "back":
            await store.pause("default", False)
        assert await store.claim(["other"], [None], 1, 60, "me") == []
        task = await begun(store, word)
        began = time.monotonic()
        child.tell(word)
        await asyncio.wait_for(task, 60)
        assert time.monotonic() - began < SOON


async def test_whoever_closes_lets_the_bell_ring_first(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes before the ringing, and the caller may be gone by then."""
    waiting, leaving = opened(db), opened(db)
    assert await waiting.claim(["default"], [None], 1, 60, "w") == []
    task = await begun(waiting, "work")
    closing = threading.Event()
    assert leaving._writer is not None
    ring, close = leaving._writer._ring, leaving._writer.close

    def ring_late(news: int) -> None:
        assert closing.wait(60)
        ring(news)

    def close_now() -> None:
        closing.set()
        close()

    monkeypatch.setattr(leaving._writer, "_ring", ring_late)
    monkeypatch.setattr(leaving._writer, "close", close_now)
    leaving.add_now([job()])
    leaving.close_now()
    await asyncio.wait_for(task, SOON)


async def test_delayed_jobs_wake_by_themselves(db: Path, opened: Opener) -> None:
    store = opened(db)
    await store.add([job("later", delay=0.3)])
    began = time.monotonic()
    while not await store.claim(["default"], [None], 1, 60, "w"):
        await asyncio.wait_for(store.wait(["default"], 30), 60)
    assert 0.25 < time.monotonic() - began < 0.3 + SOON


def test_the_bells_of_the_killed_are_taken_away(db: Path, opened: Opener) -> None:
    store = opened(db)
    with Child(works, path=str(db)) as child, Child(works, path=str(db)) as other:
        child.hear()
        other.hear()
        assert len(bells(db)) == 2
        assert all(stat.S_ISFIFO(each.stat().st_mode) for each in bells(db))
        store.add_now([job()])
        child.kill()

        def only_one_is_left() -> bool:
            store.add_now([job()])
            return len(bells(db)) == 1

        until(only_one_is_left, 60.0, "the dead process's bell is gone", beat=0.06)
        other.process.terminate()
        other.process.wait(60)
    until(lambda: (store.add_now([job()]), not bells(db))[1], 60.0, "both are gone", beat=0.06)


async def test_closing_takes_the_bell_away(db: Path, opened: Opener) -> None:
    store = opened(db)
    assert bells(db) == []
    await store.claim(["default"], [None], 1, 60, "w")
    assert len(bells(db)) == 1
    await store.close()
    assert bells(db) == []


def test_a_process_that_stands_still_blocks_nobody(db: Path, opened: Opener) -> None:
    """Its pipe fills up with other news; ringing goes on, and it finds all when it wakes."""
    store = opened(db)
    with Child(works, path=str(db)) as child:
        child.hear()
        child.process.send_signal(signal.SIGSTOP)
        until(lambda: stands_still(child.pid), 60.0, "every thread of it is stopped")
        [pipe] = bells(db)
        writing = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            while os.write(writing, bytes([ENDED]) * 4096):
                pass
        os.close(writing)
        began = time.monotonic()
        store.add_now([job("while it stood still")])
        assert time.monotonic() - began < SOON
        assert asyncio.run(store.recover(1)) == 0  # after the ringing, and no news itself
        child.process.send_signal(signal.SIGCONT)
        assert child.hear(60)[0] == "while it stood still"


def stands_still(pid: int) -> bool:
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {task.read_text().rsplit(") ", 1)[1][0] for task in tasks} == {"T"}


def idles(path: str, seconds: float) -> None:
    """In a child: waits like a worker, and says what that cost."""

    async def idle() -> None:
        store = SqliteStore(path)
        await store.open()
        await store.claim(["default"], [None], 1, 60, "w")
        say("idle")
        began, spent = time.monotonic(), time.process_time()
        while (left := began + seconds - time.monotonic()) > 0:
            await store.wait(["default"], min(left, 30))
        say((time.process_time() - spent) / (time.monotonic() - began))
        await store.close()

    asyncio.run(idle())


def test_waiting_costs_next_to_nothing(db: Path) -> None:
    with Child(idles, path=str(db), seconds=2.0) as child:
        assert child.hear() == "idle"
        assert child.hear() < 0.01


async def test_where_pipes_can_not_be_had_the_waiting_hear_of_a_deleted_file(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkfifo", refuse)
    store = opened(db)
    assert await store.claim(["default"], [None], 1, 60, "w") == []
    task = await begun(store, "work")
    db.unlink()
    with contextlib.suppress(StoreUnavailable):
        await asyncio.wait_for(task, 60)
    with pytest.raises(StoreUnavailable, match=f"{db} was deleted"):
        await store.claim(["default"], [None], 1, 60, "w")


def refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_where_pipes_can_not_be_had_it_looks_for_news(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On disks without named pipes (FAT and others)."""
    monkeypatch.setattr(os, "mkfifo", refuse)
    waiting, other = opened(db), opened(db)

    async def wait() -> float:
        while not await waiting.claim(["default"], [None], 1, 60, "w"):
            await asyncio.wait_for(waiting.wait(["default"], 30), 60)
        return time.monotonic()

    moments = []
    thread = threading.Thread(target=lambda: moments.append(asyncio.run(wait())))
    thread.start()
    until(lambda: "no named pipe" in caplog.text, 60.0, "it listens")
    began = time.monotonic()
    other.add_now([job()])
    thread.join(60)
    assert moments[0] - began < SOON
    assert bells(db) == []
