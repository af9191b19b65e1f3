"""Opening, closing, ending without closing, and coming back after a kill or a restart."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.conformance.steps import job
from tests.proof.patience import until
from tests.stores.children import Child, listen, say
from tests.stores.test_sqlite_counts import findings

from outlast.errors import StoreClosed, StoreUnavailable
from outlast.job import done
from outlast.lifeline import Lifeline
from outlast.store import Durability
from outlast.stores.sqlite import reader, schema
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


earlier: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _note_the_threads_of_earlier_tests() -> None:
    earlier.clear()
    earlier.update(threading.enumerate())


def ours() -> list[str]:
    return [
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith("outlast") and thread not in earlier
    ]


def threads() -> set[str]:
    return set(ours())


async def test_open_and_close_may_be_repeated(db: Path) -> None:
    store = SqliteStore(str(db))
    await store.close()
    for _ in range(3):
        await store.open()
        await store.open()
        await store.add([job()])
        assert threads() >= {"outlast-writer", "outlast-reader"}
        await store.close()
        await store.close()
        assert threads() == set()
    with pytest.raises(StoreClosed, match="is not open: use it between"):
        await store.add([job()])
    with pytest.raises(StoreClosed):
        await store.find()


async def test_many_may_open_and_close_at_once(db: Path) -> None:
    store = SqliteStore(str(db))
    await asyncio.gather(*(store.open() for _ in range(8)))
    assert ours().count("outlast-writer") == 1
    await store.add([job()])
    await asyncio.gather(*(store.close() for _ in range(8)))
    assert threads() == set()


async def test_an_opening_that_fails_leaves_nothing_running(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(str(db))

    def fail(*_: object) -> None:
        raise apsw.CantOpenError("injected")

    for what in ("Reads", "Gate"):
        with monkeypatch.context() as patch:
            patch.setattr(reader, what, fail)
            with pytest.raises(StoreUnavailable):
                await store.open()
        until(lambda: not threads(), 60.0, "its threads have ended")
        with pytest.raises(StoreClosed):
            await store.add([job()])
    await store.open()
    await store.add([job()])
    await store.close()


async def test_calls_that_come_while_it_closes_are_answered(db: Path) -> None:
    """Each is done, or refused; none waits for ever."""
    for _ in range(10):
        store = SqliteStore(str(db), durability=Durability.PROCESS)
        await store.open()
        over = threading.Event()
        answers: list[str] = []

        def call(store: SqliteStore = store, answers: list[str] = answers) -> None:
            while True:
                try:
                    store.add_now([job()])
                    store.depth_now("default")
                    answers.append("done")
                except StoreClosed:
                    answers.append("refused")
                    return

        callers = [threading.Thread(target=call) for _ in range(3)]
        for each in callers:
            each.start()
        until(lambda a=answers: len(a) > 5, 60.0, "they are at it")  # type: ignore[misc]
        await asyncio.wait_for(store.close(), 60)
        over.set()
        for each in callers:
            each.join(60)
            assert not each.is_alive(), "it hangs"
        assert answers.count("refused") == 3


class Late(deque[Any]):
    """What is put into it comes when the store has just been closed."""

    store: SqliteStore

    def append(self, call: Any) -> None:
        closer = threading.Thread(target=self.store.close_now)
        closer.start()
        closer.join(60)
        super().append(call)


@pytest.mark.parametrize("reads", [False, True])
def test_a_call_that_comes_just_too_late_is_refused(
    db: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    store = SqliteStore(str(db))
    store.open_now()
    late = Late()
    late.store = store
    assert store._reader is not None
    assert store._writer is not None
    answers: list[str] = []

    def call() -> None:
        try:
            store.depth_now("default") if reads else store.add_now([job()])
        except StoreClosed as error:
            answers.append(str(error))

    if reads:
        monkeypatch.setattr(store._reader, "_calls", late)
    else:
        monkeypatch.setattr(store._writer, "_waiting", late)
    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(60)
    assert answers == ["the store is closed"]


ENDINGS = {
    "falls off its end": "",
    "sys.exit": "import sys; sys.exit(0)",
    "a thread of its own": (
        "import threading; threading.Thread(target=store.depth_now, args=('q',)).start()"
    ),
    "an atexit that closes": "import atexit; atexit.register(store.close_now)",
    "an atexit that works and closes": (
        "import atexit; atexit.register(store.close_now);"
        "atexit.register(lambda: store.add_now([Job(id='last')]))"
    ),
    "an error": "import os; os.close(2); raise ValueError",
    "forgotten": "del store",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_program_that_does_not_close_ends_all_the_same(
    db: Path, opened: Opener, ending: str
) -> None:
    program = (
        "from outlast.job import Job\nfrom outlast.stores import connect\n"
        f"store = connect('sqlite:///{db}')\nstore.open_now()\n"
        "store.add_now([Job(id='a')])\nstore.claim_now(['q'], [None], 1, 60, 'w')\n"
        f"{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=90, check=False, capture_output=True, text=True
    )
    assert done.returncode == (1 if "raise" in ending else 0)
    assert done.stderr == ""
    assert opened(db).depth_now("default").live == (2 if "last" in ending else 1)


def is_killed(path: str) -> None:
    """In a child: a worker with claims, one of which it has begun, in the middle of adding."""
    store = SqliteStore(path)
    store.open_now()
    assert store.lifelines is not None
    life = Lifeline(store.lifelines, "doomed")
    life.hold()
    claims = store.claim_now(["default"], [None], 10, 1e9, "doomed")
    life.mark_started(claims[0].job.id, alone=True)
    say([claim.job.id for claim in claims])
    number = 0
    while True:
        store.add_now([job(f"late-{number}")])
        number += 1
        if number == 20:
            say("go on")


def test_a_large_file_after_a_kill(db: Path, opened: Opener) -> None:
    """It opens at once, the dead worker's jobs are back, and all is in order."""
    store = opened(db, durability=Durability.PROCESS)
    for at in range(0, 100_000, 5000):
        store.add_now([job(f"job-{n:06}") for n in range(at, at + 5000)])
    store.close_now()
    with Child(is_killed, path=str(db)) as child:
        claimed = child.hear()
        assert child.hear() == "go on"
        child.process.send_signal(signal.SIGKILL)
        child.process.wait(60)
    again = opened(db)
    claims = again.claim_now(["default"], [None], 10, 60, "w")
    assert [claim.job.id for claim in claims] == claimed
    assert [claim.job.attempt for claim in claims] == [2] + [1] * 9
    assert [claim.job.crashes for claim in claims] == [1] + [0] * 9
    assert again.depth_now("default").live >= 100_020
    again.settle_now([done(claim) for claim in claims])
    again.close_now()
    assert findings(str(db)) == []


def opens_after_a_restart(path: str, number: int) -> None:
    """In a child, told to open at the same moment as others: claims one job at once."""
    schema.boot_id = lambda: "another boot"
    store = SqliteStore(path)
    say("ready")
    listen()
    store.open_now()
    claims = store.claim_now(["default"], [None], 1, 1e9, f"w{number}")
    say([claim.job.id for claim in claims])
    listen()
    say(len(store.settle_now([done(claim) for claim in claims])))
    store.close_now()


def test_several_processes_that_start_after_a_restart(db: Path, opened: Opener) -> None:
    """The last to open must not take away what the first has claimed by then."""
    store = opened(db)
    store.add_now([job(f"job-{n}") for n in range(10)])
    store.claim_now(["default"], [None], 4, 1e9, "before")
    store.close_now()
    children = [Child(opens_after_a_restart, path=str(db), number=n) for n in range(3)]
    try:
        for child in children:
            child.hear()
        for child in children:
            child.tell()
        claimed = [child.hear()[0] for child in children]
        assert len(set(claimed)) == 3
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(schema, "boot_id", lambda: "another boot")
            store = opened(db)
            depth = store.depth_now("default")
            assert (depth.ready, depth.running) == (7, 3), "just those of before come back"
            store.close_now()
        for child in children:
            child.tell()
        assert [child.hear() for child in children] == [0, 0, 0]
    finally:
        for child in children:
            child.kill()


def test_the_last_to_open_leaves_the_claims_of_the_first_alone(
    db: Path, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees that the machine restarted, and meanwhile another has noted that, and claimed."""
    opened(db).close_now()
    monkeypatch.setattr(schema, "boot_id", lambda: "another boot")
    claims: list[Any] = []

    class Slow(apsw.Connection):
        def execute(self, statements: str, *args: Any, **more: Any) -> apsw.Cursor:
            if statements == "BEGIN IMMEDIATE" and not claims:
                claims.append(None)
                first = opened(db)
                first.add_now([job("a")])
                claims[:] = first.claim_now(["default"], [None], 1, 1e9, "w")
            return super().execute(statements, *args, **more)

    monkeypatch.setattr(apsw, "Connection", Slow)
    last = opened(db)
    assert last.claim_now(["default"], [None], 1, 1e9, "w") == []
    [claim] = claims
    assert claim is not None
    assert last.settle_now([done(claim)]) == [], "it was taken away"


async def test_threads_and_descriptors_do_not_pile_up(db: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    store = SqliteStore(str(db), durability=Durability.PROCESS)
    await store.open()
    await store.add([job()])  # the loop has one of its own from here on
    await store.claim(["default"], [None], 1, 60, "w")
    await store.close()
    before = descriptors()
    for _ in range(20):
        await store.open()
        await store.add([job()])
        await store.claim(["default"], [None], 1, 60, "w")
        await store.wait(["default"], 0.001)
        await store.close()
    assert descriptors() <= before
    assert threads() == set()


async def test_after_a_restart_of_the_machine_claims_come_back(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the marks of the worker are lost, and nobody runs a worker."""
    store = SqliteStore(str(db))
    await store.open()
    await store.add([job("a")])
    (claim,) = await store.claim(["default"], [None], 1, 3600.0, "w")
    await store.close()
    await store.open()
    assert await store.claim(["default"], [None], 1, 3600.0, "w") == []
    await store.close()
    monkeypatch.setattr(schema, "boot_id", lambda: "another start of the machine")
    await store.open()
    (again,) = await store.claim(["default"], [None], 1, 3600.0, "w")
    assert (again.job.attempt, again.job.suspect, again.job.crashes) == (2, False, 0)
    (lost,) = await store.settle([done(claim)])
    assert lost.reason == "lost"
    await store.close()
