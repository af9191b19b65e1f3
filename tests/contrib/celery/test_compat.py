"""Instead of Celery: the same program on Celery and on ours, and ours through kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.proof.patience import until
from tests.servers import RedisServer

from outlast.contrib.celery.values import stands_in
from outlast.job import Status
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
OURS = [sys.executable, "-m", "outlast", "worker", "shop:app", "--create", "--concurrency", "4"]
THEIRS = [
    sys.executable, "-m", "celery", "-A", "shop", "worker", "-P", "threads", "-c", "4",
    "--without-gossip", "--without-mingle", "--without-heartbeat",
]  # fmt: skip


def put(folder: Path, *, ours: bool) -> None:
    """The program, with one import or the other."""
    text = (HERE / "shop.py").read_text()
    if ours:
        changed = text.replace("from celery import", "from outlast.contrib.celery.compat import")
        assert changed.count("\n") == text.count("\n")
        text = changed
    (folder / "shop.py").write_text(text)
    (folder / "ask.py").write_text((HERE / "ask.py").read_text())


@contextmanager
def worker(command: list[str], folder: Path, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process group of its own, which is killed in the end."""
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, "SHOP_URL": url, "C_FORCE_ROOT": "1"},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


def ask(folder: Path, url: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "ask.py"], cwd=folder, env={**os.environ, "SHOP_URL": url},
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + (folder / "log").read_text()[-2000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer()
    server.start()
    yield server
    server.remove()


@pytest.mark.needs("redis")
def test_the_same_program_on_both(tmp_path: Path, server: RedisServer) -> None:
    answers = {}
    for name, command, url in (
        ("theirs", THEIRS, f"{server.url()}/0"),
        ("ours", OURS, "sqlite:///shop.db"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        put(folder, ours=name == "ours")
        with worker(command, folder, url):
            answers[name] = ask(folder, url)
    # Theirs says either, by which of the two it sees first.
    assert answers["theirs"].pop("failed in a chord") in ("raised ValueError", "raised ChordError")
    assert answers["ours"].pop("failed in a chord") == "raised ValueError"
    assert answers["ours"] == answers["theirs"]
    # And both are right, not alike in being wrong.
    assert answers["ours"]["inside"] == 43
    assert answers["ours"]["groups within groups"] == [[3, 4], [2, 4], 10]
    assert answers["ours"]["retried too often"] == "raised ValueError"
    assert answers["ours"]["replaced in a chord"] == [2, 40, 2, 6, 12]
    assert answers["ours"]["notes"] == [
        "4", "80", "ValueError in its place True", "ValueError no True",
        "ValueError still no True", "failure below zero [-1]", "success ['told', True, 1] [1]",
    ]  # fmt: skip


TASKS = """
import os, time
from pathlib import Path
from outlast.contrib.celery.compat import Celery, chain, chord

app = Celery("shop", broker="sqlite:///shop.db")
RUNS = Path(__file__).parent / "runs"

def ran(what):
    handle = os.open(RUNS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{what}\\n".encode())
    os.close(handle)

@app.task
def part(n):
    ran(f"part {n}")
    time.sleep(0.02)
    return n

@app.task
def total(numbers):
    ran("total")
    return sum(numbers)

@app.task
def times(n, m):
    return n * m

@app.task(bind=True)
def double(self, n):
    ran("double")
    return self.replace(chain(times.s(n, 1), times.s(2)))
"""

PROGRAM = f"""{TASKS}
if __name__ == "__main__":
    flow = chord([chain(part.si(n), part.si(n), double.s()) for n in range(40)], total.s())
    print((flow | double.s()).delay().id)
"""

DYING = f"""{TASKS}
from outlast.stores.sqlite.store import SqliteStore

settle = SqliteStore.settle

def die(step):
    if os.environ.get("DIE") == step and not os.path.exists("died"):
        open("died", "x").close()
        os.kill(os.getpid(), 9)

async def settled(self, verdicts):
    replaced = any(b"outlast.replaced" in (each.result or b"") for each in verdicts)
    if replaced:
        die("before")
    lost = await settle(self, verdicts)
    if replaced:
        die("after")
    return lost

SqliteStore.settle = settled

if __name__ == "__main__":
    print(chain(part.s(5), double.s(), times.s(3)).delay().id)
"""


@pytest.mark.parametrize("step", ["before", "after"])
async def test_one_that_is_replaced_is_so_once_through_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What runs in its place is stored with its end, in one write, before which or after which."""
    (tmp_path / "shop.py").write_text(DYING)
    command = [sys.executable, "shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    monkeypatch.setenv("DIE", step)
    store: Any = connect(f"sqlite:///{tmp_path}/shop.db")
    await store.open()
    try:
        with worker(OURS, tmp_path, ""):
            job = None
            while job is None:
                (job,) = await store.get((done.stdout.strip(),))
                await store.wait(["default"], 0.1)
            (job,) = await store.finished((job.id,), 60)
        assert (tmp_path / "died").exists(), "it was not killed"
        assert (job.status, job.result) == (Status.DONE, b"30")
        jobs = sorted(job.task for job in await store.find(limit=100))
        assert jobs == ["shop.double", "shop.part", "shop.times", "shop.times", "shop.times"]
        runs = (tmp_path / "runs").read_text().split("\n")
        assert runs.count("double") == (2 if step == "before" else 1)
    finally:
        await store.close()


async def test_a_chord_through_kills(tmp_path: Path) -> None:
    """Each step is stored with the end of the one before, so nothing is lost or started twice."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    command = [sys.executable, "shop.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    id, runs = done.stdout.strip(), tmp_path / "runs"

    def lines() -> int:
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    for _ in range(4):
        before = lines()
        with worker(OURS, tmp_path, ""):
            until(lambda before=before: lines() > before + 12, 60, "runs")  # type: ignore[misc]
    store: Any = connect(f"sqlite:///{tmp_path}/shop.db")
    await store.open()
    try:
        with worker(OURS, tmp_path, ""):
            job = None
            while job is None:
                (job,) = await store.get((id,))
                await store.wait(["default"], 0.1)
            (job,) = await store.finished((id,), 60)
            others = stands_in(job.result)
            assert others is not None
            last = None
            while last is None:
                (last,) = await store.get((others.end,))
                await store.wait(["default"], 0.1)
            (last,) = await store.finished((others.end,), 60)
        assert (last.status, last.result) == (Status.DONE, str(4 * sum(range(40))).encode())
        jobs = await store.find(limit=1000)
        counts = {name: sum(job.task == name for job in jobs) for name in {j.task for j in jobs}}
        assert counts["shop.part"] == 80
        assert counts["shop.double"] == 41
        assert counts["shop.times"] == 82
        assert counts["shop.total"] == 1
        assert {job.failures for job in jobs} == {0}
        # What was cut short ran again, and nothing that had ended did.
        assert lines() >= 81
    finally:
        await store.close()
