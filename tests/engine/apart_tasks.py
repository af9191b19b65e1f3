"""Tasks for processes of their own, at the top level of a module so that those can find them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path

from outlast import Outlast, Retry, current

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
