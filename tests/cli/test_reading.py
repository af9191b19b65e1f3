"""`outlast status`, `jobs`, `show` and `workers`: what people see, and what programs read."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.job import Failure, Job, dead, done, retry
from outlast.store import WorkerInfo

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

    from outlast.store import Ledger, Store


def info(id: str, **fields: Any) -> WorkerInfo:
    now = SystemClock().now()
    usual: dict[str, Any] = {
        "host": "h",
        "pid": 42,
        "queues": ("default",),
        "started_at": now,
        "seen_at": now,
    }
    return WorkerInfo(id=id, **(usual | fields))


@pytest.fixture
def busy(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """One job in each state."""
    monkeypatch.setenv("OUTLAST_URL", shop.url)

    async def fill(store: Store, ledger: Ledger) -> None:
        names = ("dead-1", "done-1", "retried", "running")
        await store.add([Job(id=name, task="t", max_attempts=3) for name in names])
        claims = await store.claim(["default"], ["t"], 4, 60, "w")
        by = {claim.job.id: claim for claim in claims}
        failure = Failure(
            kind="error", type="ValueError", message="no\nsecond line", traceback="Traceback: here"
        )
        await store.settle(
            [
                dead(by["dead-1"], failure),
                done(by["done-1"], b'{"a":1}'),
                retry(by["retried"], 3600, failure),
            ]
        )
        await store.add(
            [
                Job(id="ready", task="t", payload=b'{"x":1}', key="k", headers={"h": "v"}),
                Job(id="later", task="t", delay=7200),
                Job(id="item", queue="other", payload=b"\xff\x00"),
                Job(id="gone", task="t"),
            ]
        )
        await ledger.cancel(["gone"])
        await ledger.pause("other")

    shop.do(fill)
    return shop


def test_status_counts_by_state(busy: Shop) -> None:
    answer = json.loads(busy.ok("status", "--json"))
    assert answer["store"] == busy.url
    assert answer["durability"] == "power"
    lines = {(line["queue"], line["task"]): line for line in answer["lines"]}
    counts = {key: lines["default", "t"][key] for key in ("ready", "delayed", "running", "done")}
    assert counts == {"ready": 1, "delayed": 2, "running": 1, "done": 1}
    assert (lines["default", "t"]["dead"], lines["default", "t"]["cancelled"]) == (1, 1)
    assert (lines["other", None]["ready"], lines["other", None]["paused"]) == (1, True)
    text = busy.ok("status")
    assert re.search(r"^default +t +1 +2 +1 +1 +1 +1 ", text, re.MULTILINE)
    assert re.search(r"^other \(paused\) +\(items\) +1 +0", text, re.MULTILINE)
    assert re.search(r"^total +2 +2 +1 +1 +1 +1", text, re.MULTILINE)
    assert "a power cut" in text
    assert "other" not in busy.ok("status", "--queue", "default")


def test_status_of_an_empty_store(shop: Shop) -> None:
    shop.add()
    assert "No job was ever stored" in shop.ok("status", "--url", shop.url)


def test_status_names_tasks_that_no_worker_knows(busy: Shop) -> None:
    busy.do(lambda _, ledger: ledger.beat(info("w1", tasks=("another",))))
    assert json.loads(busy.ok("status", "--json"))["unknown_tasks"] == {"t": 3}
    assert "3 queued of task t, which no running worker knows" in busy.ok("status")
    busy.do(lambda _, ledger: ledger.beat(info("w2", tasks=("t",))))
    assert json.loads(busy.ok("status", "--json"))["unknown_tasks"] == {}


@pytest.mark.parametrize(
    ("args", "ids"),
    [
        ((), ["gone", "item", "later", "ready", "running", "retried", "done-1", "dead-1"]),
        (("--state", "dead"), ["dead-1"]),
        (("--state", "dead", "--state", "done"), ["done-1", "dead-1"]),
        (("--queue", "other"), ["item"]),
        (("--task", "t", "--state", "queued"), ["later", "ready", "retried"]),
        (("--key", "k"), ["ready"]),
        (("--older", "1h"), []),
        (("--newer", "1h", "--state", "running"), ["running"]),
    ],
)
def test_jobs_are_filtered(busy: Shop, args: tuple[str, ...], ids: list[str]) -> None:
    answer = json.loads(busy.ok("jobs", "--json", *args))
    assert sorted(job["id"] for job in answer["jobs"]) == sorted(ids)
    assert answer["next"] is None


def test_jobs_come_in_pages(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_URL", shop.url)
    shop.add(*(Job(id=f"job-{n:02}", task="t") for n in range(25)))
    seen: list[str] = []
    after: tuple[str, ...] = ()
    pages = 0
    while True:
        answer = json.loads(shop.ok("jobs", "--json", "--limit", "10", *after))
        seen += [job["id"] for job in answer["jobs"]]
        pages += 1
        if answer["next"] is None:
            break
        after = ("--after", answer["next"])
    assert pages == 3
    assert sorted(seen) == [f"job-{n:02}" for n in range(25)]
    assert seen[0] > seen[-1]
    text = shop.run("jobs", "--limit", "10")
    assert f"--after {seen[9]}" in text.stderr
    assert len(text.stdout.splitlines()) == 11


def test_the_list_says_the_most_telling_thing(busy: Shop) -> None:
    rows = {line.split()[0]: line for line in busy.ok("jobs").splitlines()[1:]}
    assert rows["dead-1"].endswith("error: ValueError: no")
    assert re.search(r"again in 59m\d+s error: ValueError: no$", rows["retried"])
    assert re.search(r"in 1h59m$", rows["later"])
    assert rows["gone"].split()[1] == "cancelled"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--queue", "defalt"), "did you mean 'default'"),
        (("--task", "tt"), "did you mean 't'"),
        (("--task", "t", "--queue", "other"), "in queue 'other'"),
        (("--older", "soon"), "15m"),
        (("--limit", "0"), "limit"),
        (("--state", "sleeping"), "queued"),
    ],
)
def test_wrong_filters_are_no_empty_answer(busy: Shop, args: tuple[str, ...], said: str) -> None:
    result = busy.run("jobs", *args)
    assert result.exit_code in (2, 3)
    assert result.stdout == ""
    assert said in result.stderr


def test_show_everything(busy: Shop) -> None:
    text = busy.ok("show", "dead-1")
    for part in ("dead-1", "dead", "ValueError: no", "Traceback: here", "created_at"):
        assert part in text
    view = json.loads(busy.ok("show", "dead-1", "--json"))
    assert view["failure"]["traceback"] == "Traceback: here"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", view["created_at"])
    view = json.loads(busy.ok("show", "ready", "--json"))
    assert (view["arguments"], view["key"], view["headers"]) == ({"x": 1}, "k", {"h": "v"})
    assert json.loads(busy.ok("show", "done-1", "--json"))["result"] == {"a": 1}
    views = json.loads(busy.ok("show", "ready", "item", "--json"))
    assert [view["id"] for view in views] == ["ready", "item"]
    assert views[1]["arguments_base64"] == "/wA="
    assert "arguments" not in views[1]


def test_an_id_that_is_not_there(busy: Shop) -> None:
    result = busy.run("show", "ready", "dead-2")
    assert result.exit_code == 3
    assert "no job 'dead-2'" in result.stderr
    assert "did you mean 'dead-1'" in result.stderr
    assert result.stdout == ""


def test_a_page_after_something_that_is_no_job(busy: Shop) -> None:
    result = busy.run("jobs", "--after", "dead-2")
    assert result.exit_code == 3
    assert "--after: no job 'dead-2'" in result.stderr
    assert "did you mean 'dead-1'" in result.stderr
    assert result.stdout == ""


def test_a_page_after_a_job_that_is_gone_by_now(busy: Shop) -> None:
    assert busy.run("jobs", "--after", str(SystemChance().uuid7())).exit_code == 0


def test_workers(busy: Shop) -> None:
    assert json.loads(busy.ok("workers", "--json")) == {"workers": []}
    busy.do(lambda _, ledger: ledger.beat(info("w1", running=3, concurrency=10, tasks=("t",))))
    (worker,) = json.loads(busy.ok("workers", "--json"))["workers"]
    assert (worker["id"], worker["pid"], worker["running"], worker["tasks"]) == ("w1", 42, 3, ["t"])
    assert worker["alive"] is True
    assert re.search(r"^w1 +h +42 +default +3/10 ", busy.ok("workers"), re.MULTILINE)
    assert "silent" not in busy.ok("workers")


def test_a_worker_that_fell_silent_is_listed_and_not_counted(
    busy: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.do(lambda _, ledger: ledger.beat(info("w1", tasks=("another",))))
    assert "1 worker\n" in busy.ok("status")
    monkeypatch.setattr(SystemClock, "now", lambda _: time.time() + 61)
    (worker,) = json.loads(busy.ok("workers", "--json"))["workers"]
    assert worker["alive"] is False
    assert "(silent)" in busy.ok("workers")
    answer = json.loads(busy.ok("status", "--json"))
    assert (answer["workers"], answer["unknown_tasks"]) == (0, {})


def test_what_a_stranger_stored_cannot_drive_the_terminal(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_URL", shop.url)
    evil = "\x1b]0;pwned\x07\x1b[2J\u202e<script>alert(1)</script>"

    async def fill(store: Store, _: Ledger) -> None:
        payload = json.dumps({"x": evil}).encode()
        await store.add([Job(id="evil", task="t", payload=payload, headers={"h": evil})])
        (claim,) = await store.claim(["default"], ["t"], 1, 60, "w")
        await store.settle([dead(claim, Failure(kind="error", message=evil, traceback=evil))])

    shop.do(fill)
    for args in (("jobs",), ("show", "evil"), ("show", "evil", "--json"), ("jobs", "--json")):
        text = shop.ok(*args)
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert json.loads(shop.ok("show", "evil", "--json"))["arguments"] == {"x": evil}


def test_a_terminal_gets_a_drawn_table(busy: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    from click import utils
    from click.testing import _NamedTextIOWrapper  # what CliRunner puts in sys.stdout's place

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(_NamedTextIOWrapper, "isatty", lambda _: True, raising=False)
    monkeypatch.setattr(utils, "should_strip_ansi", lambda *_: True)
    text = busy.ok("jobs")
    assert "─" in text
    assert "dead-1" in text


def test_numbers_and_depths_that_json_cannot_hold_are_shown_as_bytes(shop: Shop) -> None:
    shop.add(
        Job(id="infinite", task="t", payload=b'{"x":1e999}'),
        Job(id="deep", task="t", payload=b"[" * 5000 + b"]" * 5000),
        Job(id="deeper", task="t", payload=b'{"x":' * 300 + b"1" + b"}" * 300),
        Job(id="long", task="t", payload=b"9" * 5000),
    )
    for id in ("infinite", "deep", "deeper", "long"):
        view = json.loads(shop.ok("show", id, "--json", "--url", shop.url))
        assert "arguments_base64" in view
        assert shop.ok("show", id, "--url", shop.url)


@pytest.mark.parametrize(
    "change",
    [
        "created_at = 9e999", "created_at = -9e999", "created_at = -1e300", "created_at = 1e300",
        "started_at = 9e999, finished_at = -9e999, state = 4", "due = 9e998, state = 0",
        "payload = zeroblob(3000000)", "priority = 1 << 62", "failure = 'x'", "opts = '[['",
    ],
)  # fmt: skip
def test_a_row_that_somebody_wrote_into_hides_no_other(shop: Shop, change: str) -> None:
    shop.add(Job(id="good", task="t"), Job(id="bad", task="t"))
    connection = apsw.Connection(str(shop.folder / "shop.db"))
    connection.execute(f"UPDATE jobs SET {change} WHERE id = 'bad'")
    connection.close()
    found = json.loads(shop.ok("jobs", "--json", "--url", shop.url))["jobs"]
    assert {each["id"] for each in found} == {"good", "bad"}
    assert "good" in shop.ok("jobs", "--url", shop.url)
    assert "bad" in shop.ok("show", "bad", "--url", shop.url)
    assert "default" in shop.ok("status", "--url", shop.url)
