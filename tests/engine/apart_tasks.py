"""Tasks for processes of their own, at the top level of a module so that those can find them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from outlast import Outlast, Retry, TaskError, current

app = Outlast("memory://apart")
__all__ = ["app"]


@app.task(name="where", processes=True)
def where(n: int) -> tuple[int, int]:
    """Its process, and what it was given."""
    print("printing is harmless")
    return os.getpid(), n


@app.task(name="looks", processes=True)
def looks() -> tuple[str, int, str]:
    run = current()
    run.progress(0.5, "half")
    return run.id, run.attempt, run.idempotency_key


@app.task(name="hangs", processes=True, timeout=0.2)
def hangs(log: str) -> None:
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\n")
    threading.Event().wait(60)


@app.task(name="waits", processes=True)
def waits(log: str) -> None:
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\n")
    threading.Event().wait(60)


@app.task(name="dies", processes=True)
def dies(log: str) -> None:
    with open(log, "a") as file:
        file.write(f"{os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task(name="exits", processes=True)
def exits() -> None:
    os._exit(3)


@app.task(name="raises", processes=True)
def raises() -> None:
    raise LookupError("not there")


@app.task(name="leaves", processes=True)
def leaves() -> None:
    sys.exit("goodbye")


@app.task(name="retries", processes=True, retry=2)
def retries(marker: str) -> str:
    if not Path(marker).exists():
        Path(marker).touch()
        raise Retry(0)
    return "second time"


@app.task(name="loops", processes=True)
def loops() -> int:
    async def inner() -> int:
        return 7

    return asyncio.run(inner())


@app.task(name="odd", processes=True)
def odd() -> object:
    return object()


def note(log: str, word: str) -> str:
    """The work of a step: a line in a file outside."""
    with open(log, "a") as file:
        file.write(f"{word}\n")
    return word.upper()


@app.task(name="stepped", processes=True)
def stepped(log: str) -> list[str]:
    """Dies once, with two steps done."""
    step = current().step_sync
    done = [step("note", note, log, word) for word in ("one", "two")]

    async def inner() -> str:
        return str(await current().step("last", note, log, "three"))

    if not os.path.exists(log + ".died"):
        Path(log + ".died").touch()
        os._exit(3)
    return [*done, asyncio.run(inner())]


@app.task(name="sleeps", processes=True)
def sleeps() -> None:
    asyncio.run(current().sleep(1))


@app.task(name="leaves_a_thread", processes=True)
def leaves_a_thread(log: str) -> int:
    """Its thread goes on in the process when the job has ended."""
    step = current().step_sync

    def late() -> None:
        while not os.path.exists(log + ".go"):
            threading.Event().wait(0.01)
        try:
            step("late", note, log, "late")
        except TaskError as error:
            note(log, str(error))

    threading.Thread(target=late, daemon=True).start()
    return os.getpid()


@app.task(name="waits_for_it", processes=True)
def waits_for_it(log: str) -> int:
    """Until that thread has said something."""
    Path(log + ".go").touch()
    while not os.path.exists(log):
        threading.Event().wait(0.01)
    return os.getpid()


class Shelf:
    """A task that is no name of the module."""

    @staticmethod
    @app.task(name="shelved", processes=True)
    def shelved() -> str:
        return "found"


def hidden_task() -> None:
    """Registers a task that no other process can find."""

    @app.task(name="hidden", processes=True)
    def hidden() -> None:
        raise AssertionError("never found")
