"""Programs without an event loop, on a real file: they end, fork, and outlive their main thread."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import os, sys, threading
from outlast import Durability, Outlast

app = Outlast("sqlite:///jobs.db", durability=Durability.PROCESS)

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b
"""

COUNT = """
import asyncio
async def count():
    async with app:
        print((await app.store.depth("default")).ready)
asyncio.run(count())
"""


def run(folder: Path, text: str) -> list[str]:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM + text]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


def test_a_program_that_just_ends_has_stored_everything_and_closed(tmp_path: Path) -> None:
    run(tmp_path, "for n in range(3): add.enqueue_sync(n, n)")
    assert not (tmp_path / "jobs.db-wal").exists(), "the store was not closed"
    assert run(tmp_path, COUNT) == ["3"]


def test_a_forked_child_enqueues_too(tmp_path: Path) -> None:
    """As pre-forking servers do: the parent may or may not have enqueued before."""
    run(
        tmp_path,
        """
add.enqueue_sync(1, 1)
children = []
for n in range(4):
    child = os.fork()
    if not child:
        add.enqueue_sync(n, n)
        sys.exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
add.enqueue_sync(2, 2)
""",
    )
    assert run(tmp_path, COUNT) == ["6"]


@pytest.mark.parametrize("before", ["", "add.enqueue_sync(1, 1)"])
def test_a_thread_that_outlives_the_main_one(tmp_path: Path, before: str) -> None:
    if sys.version_info[:2] == (3, 12) and not before:
        pytest.skip("early versions of Python 3.12 start no thread once the main one has ended")
    run(
        tmp_path,
        f"""
def late():
    threading.main_thread().join()
    add.enqueue_sync(2, 2)
threading.Thread(target=late).start()
{before}
""",
    )
    assert run(tmp_path, COUNT) == ["2" if before else "1"]


def test_an_app_opened_before_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    lines = run(
        tmp_path,
        """
import asyncio
from outlast import StoreClosed

async def main():
    async with app:
        await add.enqueue(1, 1)
        child = os.fork()
        if not child:
            try:
                await add.enqueue(2, 2)
            except StoreClosed as error:
                print("forked" in str(error), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        await add.enqueue(3, 3)

asyncio.run(main())
""",
    )
    assert lines == ["True"]
    assert run(tmp_path, COUNT) == ["2"]


def test_one_app_in_two_loops_one_after_the_other(tmp_path: Path) -> None:
    lines = run(
        tmp_path,
        """
import asyncio

async def main(n):
    async with app:
        await add.enqueue(n, n)

for n in range(3):
    asyncio.run(main(n))
""",
    )
    assert lines == []
    assert run(tmp_path, COUNT) == ["3"]
