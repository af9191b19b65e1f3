"""The no-op task as huey runs it on SQLite; peers.py fills the store and starts the consumer."""

from __future__ import annotations

import os
from pathlib import Path

from huey import SqliteHuey

from outlast.cli.bench_work import FOLDER, count

PAYLOAD = "N" + "x" * 99

# As it comes: WAL, and SQLite's own synchronous=FULL, which is what outlast promises too.
huey = SqliteHuey("bench", filename=str(Path(os.environ[FOLDER], "huey.db")))


def _noop(payload: str) -> None:
    count()


noop = huey.task(name="noop")(_noop)


def fill(jobs: int) -> None:
    """Put so many calls in."""
    for _ in range(jobs):
        noop(PAYLOAD)
