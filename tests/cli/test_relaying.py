"""`outlast relay`: moves on what waits, and stops in order."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.cli.test_worker import log_of, working
from tests.proof.patience import until

from outlast import Outlast, outbox_tables

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


def tables(shop: Shop) -> None:
    connection = sqlite3.connect(shop.folder / "rows.db")
    connection.executescript(outbox_tables("sqlite"))
    connection.close()


def write(shop: Shop, n: int) -> None:
    """An order and its job, in a database of the shop's own."""
    app = Outlast(shop.url)

    @app.task(name="sum", queue="maths")
    def add_up(*numbers: int) -> int:
        return sum(numbers)

    connection = sqlite3.connect(shop.folder / "rows.db")
    with connection:
        app.outbox(connection).enqueue(add_up.call(n))
    connection.close()


def test_once(shop: Shop) -> None:
    shop.add()
    (shop.folder / "rows.db").touch()
    assert shop.ok(
        "relay", "sqlite:///rows.db", "--app", "shop:app", "--once", "--create"
    ) == "Moved 0 jobs on.\n"  # fmt: skip
    write(shop, 1)
    write(shop, 2)
    said = shop.ok("relay", "sqlite:///rows.db", "--app", "shop:app", "--once")
    assert said == "Moved 2 jobs on.\n"
    assert shop.ok("jobs", "--app", "shop:app").count("sum") == 2
    write(shop, 3)
    assert "Moved 1 jobs on." in shop.ok("relay", "sqlite:///rows.db", "--url", shop.url, "--once")


def test_what_is_wrong_is_said(shop: Shop) -> None:
    shop.add()
    result = shop.run("relay", "sqlite:///none.db", "--url", shop.url, "--once")
    assert (result.exit_code, "unable to open" in result.stderr) == (4, True)
    result = shop.run("relay", shop.url, "--url", shop.url, "--once")
    assert (result.exit_code, "needs no outbox" in result.stderr) == (2, True)


def test_goes_on_until_it_is_stopped(shop: Shop) -> None:
    tables(shop)
    shop.add()
    process = subprocess.Popen(
        [sys.executable, "-m", "outlast", "relay", "sqlite:///rows.db", "--app", "shop:app"],
        cwd=shop.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        assert "Ctrl-C stops it" in process.stderr.readline()
        write(shop, 1)
        while "sum" not in shop.run("jobs", "--url", shop.url).output:
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert out == "Moved 1 jobs on.\n"


def test_a_worker_moves_on_what_it_runs(shop: Shop) -> None:
    shop.add()
    words = ("shop:app", "-q", "maths", "--outbox", "sqlite:///rows.db")
    with working(shop, *words) as process:
        until(lambda: "the outbox is not moved on" in log_of(shop), 60.0, "it says what is wrong")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    tables(shop)
    write(shop, 4)
    with working(shop, *words) as process:
        until(lambda: "done" in shop.run("jobs", "--url", shop.url).output, 60.0, "it has run")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
