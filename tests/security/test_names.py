"""Names, keys, ids and lanes that would mean something to SQL, to a shell or to a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import job

from outlast.errors import ConfigurationError, JobNotFound
from outlast.job import Death, Failure, Job, Status, dead, done
from outlast.stores import connect
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

HOSTILE = [
    "'; DROP TABLE jobs; --",
    '" OR 1=1 --',
    "`x`",
    "[x]",
    "%",
    "_",
    "*",
    "?1",
    ":name",
    "$1",
    "@x",
    "\\",
    "\\u0027",
    "x\ny",
    "x\ty",
    "x\x1b[2J",
    "\u202egpj.exe",
    "\ufeff",
    "e\u0301",
    "\u00e9",
    "☃" * 60,
    "\U0001f4a9",
    "{}",
    "%s%n",
    "../../x",
    "$(reboot)",
    "<script>",
    "null",
    "NaN",
    "1",
    "1.0",
    "x'00'",
    "[1]",
    '{"$":1}',
]
PLAIN = ("_", ":name", "1", "1.0", "null", "NaN")
HALF = "\ud800"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "jobs.db"))
    await store.open()
    yield store
    await store.close()


async def test_ids_keys_and_lanes_hold_any_text_and_mean_nothing(store: SqliteStore) -> None:
    """Each is found by exactly itself: stored, claimed, settled, cancelled, revived, purged."""
    jobs = [job(text, task="t", key=text, lane=text, digest=b"d") for text in HOSTILE]
    added = await store.add(jobs)
    assert [answer.id for answer in added] == HOSTILE
    assert [answer.created for answer in added] == [True] * len(HOSTILE)
    again = await store.add([job(f"other-{n}", task="t", key=text, digest=b"d")
                             for n, text in enumerate(HOSTILE)])  # fmt: skip
    assert [(answer.id, answer.created) for answer in again] == [(text, False) for text in HOSTILE]
    found = await store.get(HOSTILE)
    assert [(each.id, each.key, each.lane) for each in found if each] == [
        (text, text, text) for text in HOSTILE
    ]
    for text in HOSTILE:
        assert [each.id for each in await store.find(key=text)] == [text]
    claims = await store.claim(["default"], ["t"], 100, 60, "w")
    assert {claim.job.id for claim in claims} == set(HOSTILE)
    assert await store.settle([done(claim) for claim in claims[:20]]) == []
    assert await store.cancel(HOSTILE) == ["ended"] * 20 + ["requested"] * (len(HOSTILE) - 20)
    assert len(await store.finished([c.job.id for c in claims], 0)) == 20
    assert await store.renew(claims[20:], 60)
    assert (await store.depth("default")).live == len(HOSTILE) - 20


@pytest.mark.parametrize("text", HOSTILE)
async def test_one_hostile_text_finds_only_itself(store: SqliteStore, text: str) -> None:
    await store.add([job("plain", task="t"), job("keyed", task="t", key="k", lane="l")])
    assert await store.get([text]) == [None]
    assert await store.cancel([text]) == ["missing"]
    assert await store.revive([text]) == [False]
    assert await store.find(key=text) == []
    assert await store.find(queue=text) == []
    assert await store.find(task=text) == []
    assert await store.claim([text], [text, "t"], 10, 60, text) == []
    assert await store.claim(["default"], [text, None], 10, 60, text) == []
    assert await store.recover_worker(text, Death()) == 0
    assert (await store.depth(text)).live == 0
    await store.leave(text)
    await store.pause(text)
    with pytest.raises(JobNotFound):
        await store.purge(text, [Status.QUEUED])
    with pytest.raises(JobNotFound):
        await store.finished([text], 0)
    assert len(await store.claim(["default"], ["t"], 10, 60, text)) == 2
    [worker_job] = await store.get(["plain"])
    assert worker_job is not None
    assert worker_job.worker == text
    assert await store.recover_worker(text, Death(blamed=frozenset())) == 2


@pytest.mark.parametrize("text", [*HOSTILE, "", "x" * 129, "a b", "\0", HALF])
@pytest.mark.parametrize("field", ["queue", "task"])
async def test_names_are_letters_digits_and_a_few_marks(
    store: SqliteStore, field: str, text: str
) -> None:
    wrong: Any = {field: text}
    if text in PLAIN:
        await store.add([job(**wrong)])
        return
    with pytest.raises(ConfigurationError, match=field) as found:
        await store.add([job(**wrong), job()])
    assert (await store.depth("default")).live == 0
    assert str(found.value).isascii(), "what is refused is shown escaped"
    assert str(found.value).isprintable()


@pytest.mark.parametrize("text", ["", "\0", "a\0b", HALF, "x" * 600])
@pytest.mark.parametrize("field", ["id", "key", "lane"])
async def test_texts_that_not_every_store_can_hold_are_refused(
    store: SqliteStore, field: str, text: str
) -> None:
    wrong: Any = {"id": "good", "task": "t", field: text}
    with pytest.raises(ConfigurationError, match=field) as found:
        await store.add([Job(**wrong)])
    assert str(found.value).isascii()
    assert str(found.value).isprintable()


@pytest.mark.parametrize("text", ["\0", "good\0", "a\0b", HALF])
async def test_asking_for_what_can_not_be_stored_finds_nothing(
    store: SqliteStore, text: str
) -> None:
    await store.add([job("good"), job("a")])
    assert await store.get([text, "good"]) == [None, *(await store.get(["good"]))]
    assert await store.cancel([text]) == ["missing"]
    assert await store.revive([text]) == [False]
    assert await store.find(key=text) == []
    with pytest.raises(JobNotFound):
        await store.finished([text], 0)
    assert (await store.depth("default")).live == 2


@pytest.mark.parametrize("text", [*HOSTILE, "", "x" * 129, HALF, "\0"])
def test_namespaces_are_plain_names(tmp_path: Path, text: str) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    if text in PLAIN:
        connect(url, namespace=text)
        return
    with pytest.raises(ConfigurationError, match="namespace"):
        connect(url, namespace=text)


async def test_a_failure_is_text_whatever_is_in_it(store: SqliteStore) -> None:
    text = "".join(HOSTILE) + "\0"
    await store.add([job("x")])
    [claim] = await store.claim(["default"], [None], 1, 60, "w")
    failure = Failure(kind="error", message=text, type=text, traceback=text)
    assert await store.settle([dead(claim, failure)]) == []
    [found] = await store.get(["x"])
    assert found is not None
    assert found.failure == failure
