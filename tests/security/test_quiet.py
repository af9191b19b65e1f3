"""A store at work calls nobody, starts nothing, and says nothing of what is stored in it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import job

from outlast.errors import KeyConflict, OutlastError
from outlast.job import Failure, done, retry
from outlast.stores import connect
from outlast.stores.sqlite import writer
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

CANARY = "c4n4ry-5ecret"

AT_WORK = """
import asyncio, sys
from pathlib import Path
from outlast.job import Job, done
from outlast.stores import connect

async def work():
    store = connect(sys.argv[1])
    await store.open()
    await store.add([Job(id=str(n), task="t", key=str(n), lane="l") for n in range(50)])
    for _ in range(50):
        claims = await store.claim(["default"], ["t"], 10, 60, "w")
        await store.settle([done(claim, b"1") for claim in claims])
    await store.find()
    await store.lines()
    await store.prune(100)
    await store.wait(["default"], 0.01)
    await store.backup(Path(sys.argv[2]))
    await store.close()

seen = []
def hook(event, args):
    if event.split(".")[0] in ("socket", "subprocess", "urllib", "pickle", "ctypes"):
        seen.append((event, repr(args)[:200]))
    if event in ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.putenv"):
        seen.append((event, repr(args)[:200]))
    if event == "open" and isinstance(args[0], str) and isinstance(args[2], int) and args[2] & 3:
        if not args[0].startswith(sys.argv[3]):
            seen.append((event, repr(args)[:200]))

loop = asyncio.new_event_loop()
import outlast.stores.sqlite
sys.addaudithook(hook)
loop.run_until_complete(work())
loop.close()
assert not seen, seen
"""


def test_a_store_at_work_touches_its_own_files_alone(tmp_path: Path) -> None:
    words = [f"sqlite:///{tmp_path}/jobs.db", f"{tmp_path}/copy.db", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", AT_WORK, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


async def _everything_that_may_fail(store: SqliteStore, said: list[str]) -> None:
    async def failing(call: Any) -> None:
        try:
            await call
        except (OutlastError, asyncio.QueueFull) as error:
            said.append(f"{error!r} {error} {error.__cause__!r} {getattr(error, 'ids', '')}")

    secret = f'"{CANARY}"'.encode()
    given: dict[str, Any] = {"task": "t", "payload": secret, "headers": {"x": CANARY}}
    await store.add([job("a", key="k", digest=b"d", **given)])
    await failing(store.add([job("b", key="k", digest=b"other", **given)]))
    await failing(store.add([job("c", **given)], capacity=0))
    await failing(store.add([job("d", priority=1000, **given)]))
    [claim] = await store.claim(["default"], ["t"], 1, 60, "w")
    await failing(store.settle([done(claim, secret), done(claim, secret)]))
    await failing(store.settle([retry(claim, 0, Failure(kind="error", message=CANARY))]))
    await failing(store.finished(["nowhere"], 0))
    await failing(store.purge("never", []))
    said.append(repr(store))
    assert store._writer is not None
    store._writer._strikes = writer.STRIKES
    await store.close()
    await failing(store.add([job("e", **given)]))


async def test_what_is_stored_is_in_no_log_and_in_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    store = SqliteStore(str(tmp_path / "jobs.db"))
    with caplog.at_level(logging.DEBUG):
        await store.open()
        await _everything_that_may_fail(store, said)
    assert any(KeyConflict.__name__ in line for line in said)
    assert len(said) > 5
    assert CANARY not in "\n".join(said)
    assert CANARY not in caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:{}@host:port/db",
        "redis://:{}@host:6379/zero",
        "amqps://user:{}@host:port/vhost",
        "sqlite://user:{}@host/jobs.db",
        "memory://user:{}@room",
        "nonsense://user:{}@host",
        "sqlite:///jobs.db?password={}",
        "sqlite:///jobs.db?durability=power&token={}",
        "postgresql://user:{}@host/db?durability=never",
        "postgresql://user:p@ss/{}@host/db",
        "user:{}@host",
    ],
)
def test_passwords_in_urls_are_never_shown(url: str) -> None:
    with pytest.raises(OutlastError) as found:
        connect(url.format(CANARY))
    error: BaseException | None = found.value
    while error is not None:
        assert CANARY not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__
