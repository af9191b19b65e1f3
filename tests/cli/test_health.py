"""`outlast health`: an exit code that a supervisor of programs can believe."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

from outlast.clock import SystemClock
from outlast.job import Job
from outlast.store import WorkerInfo

if TYPE_CHECKING:
    import pytest
    from tests.cli.conftest import Shop


def beat(shop: Shop, id: str, queues: tuple[str, ...] = ("default",)) -> None:
    now = SystemClock().now()
    worker = WorkerInfo(id=id, host="h", pid=1, queues=queues, seen_at=now, started_at=now)
    shop.do(lambda _, ledger: ledger.beat(worker))


def checks(shop: Shop, *args: str) -> tuple[int, dict[str, Any]]:
    result = shop.run("health", "--json", *args)
    answer = json.loads(result.stdout)
    assert answer["healthy"] is (result.exit_code == 0)
    return result.exit_code, {check["name"]: check for check in answer["checks"]}


def test_a_store_that_answers_is_healthy(stocked: Shop) -> None:
    code, found = checks(stocked)
    assert code == 0
    assert found["store"]["found"] == stocked.url
    assert found["durability"]["found"] == "power"
    assert "ok   store" in stocked.ok("health")


def test_a_missing_or_damaged_store_is_not(stocked: Shop) -> None:
    code, found = checks(stocked, "--url", "sqlite:///missing.db")
    assert (code, found["store"]["ok"]) == (1, False)
    (stocked.folder / "text.db").write_text("no database" * 1000)
    code, found = checks(stocked, "--url", "sqlite:///text.db")
    assert (code, found["store"]["ok"]) == (1, False)
    assert "FAIL store" in stocked.run("health", "--url", "sqlite:///text.db").stdout


def test_a_namespace_that_is_not_there_is_not(stocked: Shop) -> None:
    code, found = checks(stocked, "--namespace", "othr")
    assert (code, found["store"]["ok"]) == (1, False)
    assert "the namespaces here are default" in found["store"]["found"]


def test_a_wrong_command_line_is_no_state_of_health(shop: Shop) -> None:
    assert shop.run("health", "--url", "nonsense").exit_code == 2


def test_the_durability_that_is_wanted(stocked: Shop) -> None:
    assert checks(stocked, "--durability", "process")[0] == 0
    code, found = checks(stocked, "--durability", "replica")
    assert (code, found["durability"]["ok"]) == (1, False)


def test_workers_that_are_alive(stocked: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks(stocked, "--workers")[0] == 1
    beat(stocked, "w1")
    with monkeypatch.context() as later:
        later.setattr(SystemClock, "now", lambda _: time.time() + 61)
        assert checks(stocked, "--workers")[0] == 1
    assert checks(stocked, "--workers")[0] == 0
    assert checks(stocked, "--workers", "2")[0] == 1
    beat(stocked, "w2", queues=("other",))
    assert checks(stocked, "--workers", "2")[0] == 0
    assert checks(stocked, "--workers", "2", "--queue", "other")[0] == 1


def test_the_age_of_the_oldest_ready_job(stocked: Shop) -> None:
    assert checks(stocked, "--max-age", "1h")[0] == 0
    code, found = checks(stocked, "--max-age", "0")
    assert (code, found["age"]["ok"]) == (1, False)
    assert checks(stocked, "--max-age", "0", "--queue", "other")[0] == 0
    stocked.ok("pause", "default")
    assert checks(stocked, "--max-age", "0")[0] == 0


def test_delayed_jobs_wait_on_purpose(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_URL", shop.url)
    shop.add(Job(id="later", task="t", delay=3600))
    assert checks(shop, "--max-age", "0")[0] == 0


def test_a_store_that_does_not_answer_in_time(
    stocked: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.stores.sqlite import SqliteStore

    async def hang(_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(SqliteStore, "open", hang)
    code, found = checks(stocked, "--timeout", "0.05")
    assert (code, found["store"]["ok"]) == (1, False)
    assert "no answer" in found["store"]["found"]
