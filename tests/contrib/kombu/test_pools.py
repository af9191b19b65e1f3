"""Greenlets, and several workers and kinds of pools on one file; and what watches them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.contrib.kombu.rig import PATIENCE, ROOT, Rig
from tests.contrib.kombu.store import look
from tests.proof.patience import until
from tests.proof.processes import import_path
from tests.servers import free_port

if TYPE_CHECKING:
    from pathlib import Path


def test_greenlets(rig: Rig) -> None:
    """Many tasks wait at once in one thread, and the worker answers meanwhile."""
    rig.backend = rig.broker
    worker = rig.worker("-c", "10", "-P", "gevent")
    for number in range(8):
        rig.send("hold", number, rig.gate)
    until(lambda: len(rig.starts()) == 8, PATIENCE, "all of them run")
    assert {line["pid"] for line in rig.said()} == {worker.pid}
    inspect = rig.app.control.inspect(timeout=PATIENCE, limit=1)
    assert len(inspect.active()["w@here"]) == 8
    later = rig.send("note", 20, countdown=0.5)
    rig.open_gate()
    rig.wait_for(*range(8))
    assert later.get(timeout=PATIENCE) == 20
    assert rig.stop(worker) == 0
    assert look(rig)[0].live == 0


def test_greenlets_and_a_server_are_refused(tmp_path: Path) -> None:
    program = (
        "from gevent import monkey; monkey.patch_all()\n"
        "import outlast.contrib.kombu, kombu\n"
        "kombu.Connection('outlast+postgresql://me:S3cr3t@127.0.0.1:1/x').connect()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "Unsupported" in done.stderr
    assert "outlast+sqlite" in done.stderr
    assert "S3cr3t" not in done.stderr.replace(program, "")


def test_greenlets_that_are_killed_lose_nothing(rig: Rig) -> None:
    victim = rig.worker("-c", "4", "-P", "gevent", name="victim")
    for number in range(6):
        rig.send("hold", number, rig.gate)
    until(lambda: len(rig.starts()) >= 4, PATIENCE, "some of them run")
    rig.kill(victim)
    rig.open_gate()
    rig.worker("-c", "4", "-P", "gevent", name="second")
    rig.wait_for(*range(6))
    assert sorted(rig.ends()) == list(range(6))


def test_several_workers_share_one_file(rig: Rig) -> None:
    """Each message is one worker's, whatever pools they have."""
    count = 150
    for number in range(count):
        rig.send("note", number, queue="celery")
    pools = [
        rig.worker("-c", "2", "-P", pool, name=pool) for pool in ("prefork", "threads", "solo")
    ]
    for number in range(count, 2 * count):
        rig.send("note", number)
    rig.wait_for(*range(2 * count))
    assert sorted(rig.ends()) == list(range(2 * count))
    assert len({line["pid"] for line in rig.said()}) >= 3
    inspect = rig.app.control.inspect(timeout=PATIENCE, limit=3)
    assert set(inspect.ping()) == {"prefork@here", "threads@here", "solo@here"}
    for worker in pools:
        assert rig.stop(worker) == 0
    assert look(rig)[0].live == 0


def test_flower_sees_workers_and_tasks(rig: Rig, tmp_path: Path) -> None:
    rig.worker("-c", "1", "-P", "threads", "-E")
    port = free_port()
    with (tmp_path / "flower.log").open("wb") as log:
        flower = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.contrib.kombu.program",
             "flower", f"--port={port}", "--address=127.0.0.1"],
            cwd=tmp_path, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": import_path(ROOT),
                 "BROKER": rig.broker, "LOG": str(rig.log),
                 "FLOWER_UNAUTHENTICATED_API": "true"},
        )  # fmt: skip

    def ask(path: str) -> Any:
        with suppress(URLError, ConnectionError), urlopen(f"http://127.0.0.1:{port}{path}") as page:
            return json.load(page)
        return None

    def knows() -> bool:
        workers = ask("/api/workers?refresh=1") or {}
        return "note" in workers.get("w@here", {}).get("registered", ())

    try:
        until(lambda: ask("/api/workers"), PATIENCE, "Flower lists a worker", beat=0.2)
        sent = rig.send("note", 1)

        def seen() -> bool:
            return sent.id in (ask("/api/tasks") or {})

        until(seen, PATIENCE, "Flower lists the task", beat=0.2)
        # A worker has one second to answer it, and Flower leaves out who has not.
        until(knows, PATIENCE, "Flower knows the worker's tasks", beat=0.2)
    finally:
        flower.terminate()
        flower.wait(PATIENCE)
