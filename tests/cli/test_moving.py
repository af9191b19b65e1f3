"""`outlast move` and `outlast worker --was`: what is said and what comes of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from outlast.cli import moving
from outlast.doctor import look_over
from outlast.errors import StoreMoved
from outlast.job import Job
from outlast.store import WorkerInfo
from outlast.stores import connect
from outlast.worker import supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.cli.conftest import Shop

NEW = "sqlite:///new.db"


def test_moves_all_jobs_and_says_so(shop: Shop) -> None:
    shop.add(Job(id="a", task="t", key="k"), Job(id="b", queue="items"))
    said = shop.ok("move", shop.url, NEW)
    assert said == "Moved 2 jobs, 1 keys and 0 events.\n"
    assert json.loads(shop.ok("show", "a", "--url", NEW, "--json"))["key"] == "k"
    again = shop.ok("move", shop.url, NEW)
    assert again.startswith("Moved 0 jobs, 0 keys and 0 events in this run, which went on")


def test_as_json(shop: Shop) -> None:
    shop.add(Job(id="a"), Job(id="b"))
    found = json.loads(shop.ok("move", shop.url, NEW, "--json"))
    assert (found["from"], found["to"]) == (shop.url, NEW)
    [space] = found["namespaces"]
    assert (space["namespace"], space["jobs"], space["stage"]) == ("default", 2, "done")


def test_moves_every_namespace(shop: Shop) -> None:
    shop.add(Job(id="a"), Job(id="b"))

    async def fill() -> None:
        store = connect(shop.url, namespace="other")
        await store.open()
        await store.add([Job(id="c")])
        await store.close()

    asyncio.run(fill())
    said = shop.ok("move", shop.url, NEW)
    assert said.splitlines() == [
        "Moved 2 jobs, 0 keys and 0 events.",
        "Namespace other",
        "Moved 1 jobs, 0 keys and 0 events.",
    ]
    assert "c" in shop.ok("jobs", "--url", NEW, "--namespace", "other")


def test_a_living_worker_stands_against_it(shop: Shop) -> None:
    shop.add(Job(id="a"))
    shop.do(lambda _, ledger: ledger.beat(WorkerInfo(id="w", host="h", pid=17)))
    result = shop.run("move", shop.url, NEW)
    assert result.exit_code == 1
    assert "1 worker is alive" in result.stderr
    assert "--drain" in result.stderr
    assert shop.ok("move", shop.url, NEW, "--drain").startswith("Moved 1 jobs")


def test_what_would_die_with_the_process_is_refused(shop: Shop) -> None:
    shop.add(Job(id="a"))
    result = shop.run("move", shop.url, "memory://")
    assert (result.exit_code, "would lose the jobs" in result.stderr) == (1, True)
    assert shop.get("a") is not None


def test_a_store_that_is_not_there_is_not_made(shop: Shop) -> None:
    result = shop.run("move", shop.url, NEW)
    assert result.exit_code == 4
    assert not (shop.folder / "shop.db").exists()
    assert not (shop.folder / "new.db").exists()


def test_says_how_far_it_has_come(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "BEAT", -1.0)
    shop.add(*[Job(id=f"j{n}") for n in range(3)])
    result = shop.run("move", shop.url, NEW)
    assert "3 of 3 jobs moved, " in result.stderr
    assert "all have arrived; 3 deleted where they were" in result.stderr


def test_jobs_that_were_there_and_keys_that_were_not_free(shop: Shop) -> None:
    shop.add(Job(id="a", task="t", key="k", digest=b"1"), Job(id="same"))
    shop.ok("move", shop.url, NEW)
    (shop.folder / "shop.db").rename(shop.folder / "away.db")
    for more in ("-wal", "-shm"):
        (shop.folder / f"shop.db{more}").unlink(missing_ok=True)
    shop.add(Job(id="b", task="t", key="k", digest=b"1"), Job(id="same"))
    said = shop.ok("move", shop.url, NEW)
    assert "1 of the jobs were there already" in said
    assert "1 came without their idempotency key" in said


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the supervisor was to do, instead of doing it."""
    calls: list[Any] = []
    monkeypatch.setattr(supervisor, "launch", calls.append)
    return calls


def was(shop: Shop, *words: str) -> Sequence[str]:
    result = shop.run("worker", "shop:app", *words)
    assert result.exit_code == 0, result.output
    return [line for line in result.stderr.splitlines() if "tasks run as root" not in line]


def test_a_worker_that_is_told_of_the_old_store_tells_what_it_holds(
    shop: Shop, launched: list[Any]
) -> None:
    shop.add(Job(id="a"), Job(id="b"))
    assert was(shop, "--was", shop.url) == [
        f"Warning: {shop.url} still holds 2 jobs that nobody here will run. Move them:"
        f" outlast move {shop.url} NEW_URL"
    ]
    shop.ok("move", shop.url, NEW)
    assert was(shop, "--was", shop.url) == []
    [said] = was(shop, "--was", "sqlite:///nowhere.db")
    assert "nobody knows whether sqlite:///nowhere.db still holds jobs" in said
    assert len(launched) == 3


def test_no_worker_starts_where_the_jobs_have_gone(shop: Shop) -> None:
    shop.add(Job(id="a"))
    shop.ok("move", shop.url, NEW)
    with pytest.raises(StoreMoved, match=r"were moved to sqlite:////.*new\.db"):
        shop.do(lambda store, _: look_over(store))


def test_what_looks_at_the_old_store_is_sent_to_the_new_one(shop: Shop) -> None:
    """Its counts are all zero, which is no good news."""
    shop.add(Job(id="a", task="t"))
    shop.ok("move", shop.url, NEW)
    for words in (("status",), ("jobs",), ("workers",), ("backup", "copy.db")):
        told = shop.run(*words, "--url", shop.url)
        assert (told.exit_code, "new.db" in told.stderr) == (0, True), words
        assert (
            "Note" not in shop.run(*words[:1], *(f"{w}2" for w in words[1:]), "--url", NEW).stderr
        )
    said = shop.run("health", "--url", shop.url)
    assert said.exit_code == 1
    assert "FAIL moved: the jobs were moved to " in said.stdout
    shop.ok("health", "--url", NEW)
    found = shop.run("doctor", shop.url)
    assert found.exit_code == 1
    assert "JOBS3" in found.stdout
    assert "JOBS3" not in shop.run("doctor", NEW).stdout
