"""`outlast retry`, `cancel`, `purge`, `pause` and `resume`: C42 and C49 among them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from outlast.job import Failure, Job, Status, dead, done

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.cli.conftest import Shop

    from outlast.job import Claim
    from outlast.store import Ledger, Store


@pytest.fixture
def store(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("OUTLAST_URL", shop.url)
    return shop


def bury(shop: Shop, *ids: str, queue: str = "default", task: str = "t") -> None:
    """Store these jobs and let them die."""

    async def work(store: Store, _: Ledger) -> None:
        await store.add([Job(id=id, task=task, queue=queue) for id in ids])
        claims = await store.claim([queue], [task], len(ids), 60, "w")
        await store.settle([dead(claim, Failure(kind="error", message="no")) for claim in claims])

    shop.do(work)


def drain(shop: Shop, *queues: str) -> list[str]:
    """What a worker would start, in order; each ends well."""

    async def work(store: Store, _: Ledger) -> list[str]:
        started: list[str] = []
        while claims := await store.claim(queues, ["t"], 100, 60, "drain"):
            started += [claim.job.id for claim in claims]
            await store.settle([done(claim) for claim in claims])
        return started

    return shop.do(work)


def status_of(shop: Shop, id: str) -> Status | None:
    job = shop.get(id)
    return None if job is None else job.status


# -- retry


def test_retry_gives_fresh_budgets(store: Shop) -> None:
    bury(store, "one", "two")
    store.ok("cancel", store.ok("enqueue", "shop:sum").strip())
    result = store.run("retry", "one")
    assert (result.exit_code, result.stdout) == (0, "one queued again\n")
    job = store.get("one")
    assert job is not None
    assert (job.status, job.failures, job.crashes) == (Status.QUEUED, 0, 0)
    assert status_of(store, "two") is Status.DEAD
    assert drain(store, "default") == ["one"]


def test_retry_says_what_it_could_not_do(store: Shop) -> None:
    store.add(Job(id="queued-1", task="t"))
    result = store.run("retry", "queued-1")
    assert result.exit_code == 1
    assert "only dead and cancelled" in result.stderr
    result = store.run("retry", "queued-2", "queued-1")
    assert result.exit_code == 3
    assert "did you mean 'queued-1'" in result.stderr
    assert store.run("retry").exit_code == 2
    assert store.run("retry", "x", "--dead").exit_code == 2
    assert store.run("retry", "x", "--queue", "q").exit_code == 2


def test_retry_of_a_job_whose_key_is_taken(store: Shop) -> None:
    async def work(store: Store, _: Ledger) -> None:
        await store.add([Job(id="old", task="t", key="k", keep_key=0)])
        (claim,) = await store.claim(["default"], ["t"], 1, 60, "w")
        await store.settle([dead(claim, Failure(kind="error"))])
        await store.prune(100)
        (added,) = await store.add([Job(id="new", task="t", key="k")])
        assert added.created

    store.do(work)
    bury(store, "other", queue="q")
    result = store.run("retry", "old")
    assert result.exit_code == 1
    assert "old stays dead" in result.stderr
    result = store.run("retry", "--dead", "--yes")
    assert result.exit_code == 1
    assert result.stdout == "Queued 1 dead job again.\n"
    assert (status_of(store, "other"), status_of(store, "old")) == (Status.QUEUED, Status.DEAD)


def test_retry_all_the_dead_of_a_kind(store: Shop) -> None:
    many = [f"job-{n:04}" for n in range(1203)]  # several pages
    bury(store, *many)
    bury(store, "other", queue="q")
    bury(store, "third", task="u")
    assert "Queue 1203 dead jobs again?" in store.run(
        "retry", "--dead", "--queue", "default", "--task", "t", input="n\n"
    ).stderr  # fmt: skip
    text = store.ok("retry", "--dead", "--queue", "default", "--task", "t", input="y\n")
    assert text == "Queued 1203 dead jobs again.\n"
    assert status_of(store, "other") is Status.DEAD
    assert status_of(store, "third") is Status.DEAD
    assert sorted(drain(store, "default")) == many
    assert store.run("retry", "--dead", "--task", "v", "--yes").exit_code == 3
    assert store.ok("retry", "--dead", "--yes") == "Queued 2 dead jobs again.\n"


# -- cancel


def test_c42_a_cancel_with_no_worker_up_holds_over_every_restart(store: Shop) -> None:
    store.add(Job(id="later", task="t", delay=0.2), Job(id="now", task="t"))
    assert store.ok("cancel", "later", "now") == "later cancelled\nnow cancelled\n"
    for _ in range(3):  # each opens the store anew, as a restarted worker does
        assert drain(store, "default") == []
        assert json.loads(store.ok("show", "later", "--json"))["state"] == "cancelled"
        assert json.loads(store.ok("show", "now", "--json"))["state"] == "cancelled"


def test_cancel_of_a_running_job_is_a_request(store: Shop) -> None:
    async def start(store: Store, _: Ledger) -> Sequence[Claim]:
        await store.add([Job(id="one", task="t")])
        return await store.claim(["default"], ["t"], 1, 60, "w")

    claims = store.do(start)
    assert "its worker was asked" in store.ok("cancel", "one")
    (lost,) = store.do(lambda store, _: store.renew(claims, 60))
    assert lost.reason == "cancelled"


def test_cancel_says_what_it_could_not_do(store: Shop) -> None:
    bury(store, "ended-1")
    store.add(Job(id="queued-1", task="t"))
    result = store.run("cancel", "ended-1", "queued-1")
    assert result.exit_code == 1
    assert result.stdout == "queued-1 cancelled\n"
    assert "ended already" in result.stderr
    result = store.run("cancel", "ended-1", "queued-2")
    assert result.exit_code == 3
    assert "no job 'queued-2'" in result.stderr


# -- purge


@pytest.fixture
def three_queues(store: Shop) -> Shop:
    """C49: 100 ready in a, b and c; in a also 20 delayed, 1 running and 5 fetched ahead."""

    async def fill(store: Store, _: Ledger) -> None:
        await store.add([Job(id=f"held-{n}", task="t", queue="a") for n in range(6)])
        assert len(await store.claim(["a"], ["t"], 6, 60, "w")) == 6
        for queue in "abc":
            await store.add([Job(id=f"{queue}-{n}", task="t", queue=queue) for n in range(100)])
        await store.add([Job(id=f"late-{n}", task="t", queue="a", delay=0.1) for n in range(20)])

    store.do(fill)
    return store


def test_c49_purge_removes_what_it_says(three_queues: Shop) -> None:
    shop = three_queues
    before = json.loads(shop.ok("status", "--json"))["lines"]
    assert shop.ok("purge", "a", "--yes") == "Deleted 120 queued jobs of queue 'a'.\n"
    after = {line["queue"]: line for line in json.loads(shop.ok("status", "--json"))["lines"]}
    assert (after["a"]["ready"], after["a"]["delayed"], after["a"]["running"]) == (0, 0, 6)
    for line in before:
        if line["queue"] != "a":
            assert after[line["queue"]] == line
    started = drain(shop, "a", "b", "c")
    assert sorted(started) == sorted(f"{queue}-{n}" for queue in "bc" for n in range(100))


def test_c49_purge_of_a_queue_that_does_not_exist(three_queues: Shop) -> None:
    before = three_queues.ok("jobs", "--json", "-n", "1000")
    result = three_queues.run("purge", "aa", "--yes")
    assert result.exit_code == 3
    assert "no queue 'aa'" in result.stderr
    assert "a, b, c" in result.stderr
    assert three_queues.ok("jobs", "--json", "-n", "1000") == before


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_purge_asks_with_the_count(three_queues: Shop, answer: str) -> None:
    result = three_queues.run("purge", "a", input=answer)
    assert result.exit_code == 1
    assert f"Delete 120 queued jobs of queue 'a' in {three_queues.url}?" in result.stderr
    assert "nothing was changed" in result.stderr
    assert "Would delete 120 " in three_queues.ok("purge", "a", "--dry-run")


def test_purge_on_a_yes_and_as_a_dry_run(three_queues: Shop) -> None:
    assert "Would delete 120 queued jobs" in three_queues.ok("purge", "a", "--dry-run")
    assert "Would delete 120" in three_queues.ok("purge", "a", "--dry-run", "--yes")
    assert "Deleted 120" in three_queues.ok("purge", "a", input="y\n")
    assert "Deleted 0 queued jobs" in three_queues.ok("purge", "a")


def test_purge_by_state(store: Shop) -> None:
    bury(store, "dead-1", "dead-2")
    store.add(Job(id="done-1", task="t"))
    drain(store, "default")
    store.add(Job(id="queued-1", task="t"))
    assert store.ok("purge", "default", "-y", "-s", "dead") == (
        "Deleted 2 dead jobs of queue 'default'.\n"
    )
    assert status_of(store, "done-1") is Status.DONE
    assert status_of(store, "queued-1") is Status.QUEUED
    assert "Deleted 2 " in store.ok("purge", "default", "-y", "--state", "all")
    assert store.run("purge", "default", "-y", "-s", "running").exit_code == 2


# -- pause and resume


def test_pause_holds_a_queue_until_resume(store: Shop) -> None:
    store.add(Job(id="one", task="t"), Job(id="two", task="t", queue="q"))
    store.ok("pause", "default")
    store.add(Job(id="three", task="t"))
    assert drain(store, "default", "q") == ["two"]
    assert "default (paused)" in store.ok("status")
    store.ok("resume", "default")
    assert drain(store, "default", "q") == ["one", "three"]


@pytest.mark.parametrize("queue", ["", "a b", "\udcff"])
def test_what_no_queue_is_called_is_not_paused(store: Shop, queue: str) -> None:
    store.add(Job(id="one", task="t"))
    result = store.run("pause", queue, "--force")
    assert result.exit_code == 2
    assert "use 1 to 128 of the letters" in result.stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_pausing_a_mistyped_queue_is_refused(store: Shop, command: str) -> None:
    store.add(Job(id="one", task="t"))
    result = store.run(command, "defautl")
    assert result.exit_code == 3
    assert "did you mean 'default'" in result.stderr
    store.ok(command, "defautl", "--force")
