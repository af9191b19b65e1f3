"""`outlast worker`: as options, and as real processes that are started, stopped and refused."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from tests.proof.patience import until

from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Shop

    from outlast.worker.options import WorkerOptions

pytestmark = pytest.mark.timeout(240)

CANARY = "S3cr3t!pw"

LONG = """
import asyncio
from pathlib import Path
from outlast import Outlast

app = Outlast("sqlite:///shop.db")


@app.task
async def hold(name: str) -> None:
    Path(name).touch()
    await asyncio.Event().wait()


@app.task
async def mark(name: str) -> str:
    Path(name).touch()
    return name
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[WorkerOptions]:
    """What would have been launched."""
    launched: list[WorkerOptions] = []
    monkeypatch.setattr("outlast.worker.supervisor.launch", launched.append)
    return launched


@contextmanager
def working(shop: Shop, *args: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A real worker in the shop's folder, killed at the end if it is still there."""
    with open(shop.folder / "worker.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "outlast", "worker", *args],
            cwd=shop.folder, stderr=log, text=True, env={**os.environ, **environment},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def log_of(shop: Shop) -> str:
    return (shop.folder / "worker.log").read_text()


def has_ended(shop: Shop, id: str, status: Status = Status.DONE) -> bool:
    job = shop.get(id)
    return job is not None and job.status is status


def test_options_reach_the_supervisor(shop: Shop, told: list[WorkerOptions]) -> None:
    shop.ok(
        "worker", "shop:app", "-q", "a,b", "--queue", "c", "-q", "a", "-c", "3", "-p", "2",
        "--grace", "1m", "--lease", "5", "--create", "--reload", "--log-level", "debug",
    )  # fmt: skip
    (options,) = told
    assert options._asdict() | {"url": None} == {
        "target": "shop:app", "loader": "outlast.cli.loading:for_worker", "url": None,
        "check": "outlast.doctor:look_over",
        "queues": ("a", "b", "c"), "concurrency": 3, "processes": 2, "grace": 60.0, "lease": 5.0,
        "loop": "asyncio", "reload": True, "log_level": "debug", "create": True, "outbox": None,
    }  # fmt: skip


def test_the_defaults_are_the_supervisors_own(shop: Shop, told: list[WorkerOptions]) -> None:
    from outlast.worker.options import WorkerOptions

    shop.ok("worker", "shop:app")
    loader, check = "outlast.cli.loading:for_worker", "outlast.doctor:look_over"
    assert told == [WorkerOptions(target="shop:app", loader=loader, check=check)]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "MODULE:APP"),
        (("shop",), "shop:app"),
        (("shop.py:app",), "names a file"),
        (("shop:app", "-c", "0"), "concurrency"),
        (("shop:app", "-q", ""), "name"),
        (("shop:app", "--lease", "0"), "at least 1"),
        (("shop:app", "--lease", "2d"), "at most a day"),
        (("shop:app", "--grace", "soon"), "15m"),
        (("shop:app", "--grace", "9" * 400), "100 years"),
    ],
)
def test_wrong_options_start_nothing(
    shop: Shop, told: list[WorkerOptions], args: tuple[str, ...], said: str
) -> None:
    result = shop.run("worker", *args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert told == []


def test_it_works_and_stops_in_order(shop: Shop) -> None:
    id = shop.ok("enqueue", "shop:send_receipt", "[7]").strip()
    with working(shop, "shop:app") as process:
        until(lambda: has_ended(shop, id), 60.0, "the job is done")
        (worker,) = json.loads(shop.ok("workers", "--json", "--app", "shop:app"))["workers"]
        assert worker["tasks"] == ["shop.send_receipt", "sum"]
        assert shop.run("health", "--workers", "--app", "shop:app").exit_code == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    banner = log_of(shop)
    for part in (f"sqlite:///{shop.folder / 'shop.db'}", "default", "shop.send_receipt"):
        assert part in banner
    view = json.loads(shop.ok("show", id, "--json", "--app", "shop:app"))
    assert (view["state"], view["result"], view["attempt"]) == ("done", "receipt 7", 1)
    assert json.loads(shop.ok("workers", "--json", "--app", "shop:app"))["workers"] == []


AS_NOBODY = """
import os, sys
from outlast.worker import supervisor

def launch(options):
    print(*os.getresuid(), *os.getresgid(), *os.getgroups(), os.environ["USER"])

supervisor.launch = launch
os.access = lambda *_: True  # this interpreter may lie where only root can read
sys.argv = ["outlast", "worker", "shop:app", *sys.argv[1:]]
from outlast.cli import main
main()
"""

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def as_root(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AS_NOBODY, *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@only_root
def test_root_can_be_given_up_for_good() -> None:
    nobody = pwd.getpwnam("nobody")
    done = as_root("--user", "nobody")
    *ids, name = done.stdout.split()
    assert name == "nobody"
    assert set(ids[:3]) == {str(nobody.pw_uid)}
    assert set(ids[3:]) == {str(nobody.pw_gid)}
    assert "Warning" not in done.stderr


@only_root
def test_root_is_warned() -> None:
    assert "--user NAME" in as_root().stderr


@only_root
def test_a_user_who_may_not_run_python(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initgroups", "setgid", "setuid"):
        monkeypatch.setattr(os, name, lambda *_: None)
    monkeypatch.setattr(os, "access", lambda *_: False)
    result = shop.run("worker", "shop:app", "--user", "nobody")
    assert result.exit_code == 2
    assert f"may not run {sys.executable}" in result.stderr


def test_a_user_that_is_not_there(shop: Shop, told: list[WorkerOptions]) -> None:
    result = shop.run("worker", "shop:app", "--user", "nobody-of-that-name")
    assert result.exit_code == 2
    assert told == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("shop:ap", "did you mean 'app'"),
        ("shp:app", "did you mean 'shop'"),
        ("broken:app", "ZeroDivisionError"),
    ],
)
def test_an_app_that_is_not_there_is_told_once(shop: Shop, target: str, said: str) -> None:
    (shop.folder / "broken.py").write_text("1 / 0\n")
    with working(shop, target) as process:
        assert process.wait(60) == 2
    log = log_of(shop)
    assert log.count(said) == 1
    assert "Traceback" not in log


@pytest.mark.parametrize("password", [CANARY, "S3cr3t%21pw"])
def test_no_log_of_a_worker_holds_the_password(shop: Shop, password: str) -> None:
    url = f"postgresql://shop:{password}@db/x"
    (shop.folder / "secretive.py").write_text(
        f"import logging\nfrom outlast import Outlast\napp = Outlast()\n"
        f"logging.getLogger('mine').debug('url %s', {url!r})\n"
    )
    with working(shop, "secretive:app", "--log-level", "debug", OUTLAST_URL=url) as process:
        assert process.wait(60) != 0
    log = log_of(shop)
    assert "3cr3t" not in log
    assert "***" in log


def test_a_task_may_log_the_url_and_it_is_masked(shop: Shop) -> None:
    (shop.folder / "chatty.py").write_text(
        "import logging, os\nfrom outlast import Outlast\napp = Outlast('sqlite:///shop.db')\n"
        "@app.task\nasync def talk() -> None:\n"
        "    logging.getLogger('mine').info('url %s', os.environ['OUTLAST_URL'])\n"
        "    raise OSError(os.environ['OUTLAST_URL'])\n"
    )
    id = shop.ok("enqueue", "chatty:talk").strip()
    url = f"postgresql://shop:{CANARY}@db/x"
    with working(shop, "chatty:app", "--log-level", "debug", OUTLAST_URL=url):
        until(lambda: has_ended(shop, id, Status.DEAD), 60.0, "the job is dead")
    log = log_of(shop)
    assert "url postgresql://shop:***@db/x" in log
    assert "3cr3t" not in log


def test_c42_a_cancelled_job_starts_in_no_worker(shop: Shop) -> None:
    (shop.folder / "long.py").write_text(LONG)
    at = ("--app", "long:app")
    later = shop.ok("enqueue", "long:mark", '["later"]', "--delay", "0.5").strip()
    shop.ok("cancel", later, *at)
    for round in range(2):
        witness = shop.ok("enqueue", "long:mark", f'["witness-{round}"]', "--delay", "0.6").strip()
        with working(shop, "long:app") as process:
            until(lambda id=witness: has_ended(shop, id), 60.0, "the witness ran")  # type: ignore[misc]
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        assert json.loads(shop.ok("show", later, "--json", *at))["state"] == "cancelled"
    assert not (shop.folder / "later").exists()


def test_c42_a_job_fetched_ahead_is_given_up_before_it_starts(shop: Shop) -> None:
    (shop.folder / "long.py").write_text(LONG)
    at = ("--app", "long:app")
    holder = shop.ok("enqueue", "long:hold", '["held"]').strip()
    ahead = shop.ok("enqueue", "long:mark", '["ahead"]').strip()
    with working(shop, "long:app", "-c", "1", "--lease", "1"):
        until((shop.folder / "held").exists, 60.0, "the long task runs")
        shop.ok("cancel", ahead, *at)
        shop.ok("cancel", holder, *at)
        until(lambda: has_ended(shop, holder, Status.CANCELLED), 60.0, "the long one is cancelled")
        witness = shop.ok("enqueue", "long:mark", '["witness"]').strip()
        until(lambda: has_ended(shop, witness), 60.0, "the witness ran")
        assert has_ended(shop, ahead, Status.CANCELLED)
    assert not (shop.folder / "ahead").exists()


def test_c49_purged_jobs_start_in_no_worker(shop: Shop) -> None:
    (shop.folder / "long.py").write_text(LONG)
    at = ("--app", "long:app")
    for name in ("a", "b"):
        for n in range(5):
            shop.ok("enqueue", "long:mark", f'["{name}-{n}"]', "--queue", name)
    shop.ok("enqueue", "long:mark", '["a-late"]', "--queue", "a", "--delay", "0.5")
    assert shop.ok("purge", "a", "--yes", *at) == "Deleted 6 queued jobs of queue 'a'.\n"
    last = shop.ok("enqueue", "long:mark", '["last"]', "--queue", "b", "--delay", "0.6").strip()
    with working(shop, "long:app", "-q", "a,b"):
        until(lambda: has_ended(shop, last), 60.0, "the last one ran")
    assert not list(shop.folder.glob("a-*"))
    assert len(list(shop.folder.glob("b-*"))) == 5
