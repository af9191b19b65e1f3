"""Legal messages that a stock client doesn't send, and illegal ones: each runs or is buried whole.

The worker goes on in any case.
"""

from __future__ import annotations

import base64
import bz2
import json
import lzma
import zlib
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
import redis.asyncio
from tests.contrib.beside.pair import Failed

from outlast import ConfigurationError, JobCancelled, JobFailed, Outlast
from outlast.access import ledger_of
from outlast.contrib.celery.beside import intake

if TYPE_CHECKING:
    from tests.contrib.beside.pair import Pair

pytestmark = pytest.mark.needs("redis")

BODY = json.dumps([["a"], {}, None]).encode()
HEADERS = {"lang": "py", "task": "say", "id": "odd"}


def letter(body: Any = BODY, headers: Any = HEADERS, **more: Any) -> bytes:
    """An envelope as kombu has it, but for what is given."""
    encoded = base64.b64encode(body).decode() if isinstance(body, bytes) else body
    found = {
        "body": encoded,
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"body_encoding": "base64", "delivery_tag": "t1"},
    }
    return json.dumps(found | {name.replace("_", "-"): one for name, one in more.items()}).encode()


def said(*parts: Any) -> bytes:
    return json.dumps(parts).encode()


def packed(method: str, body: bytes) -> bytes:
    return letter(body, {**HEADERS, "compression": method})


RUN = {
    "another language": letter(headers={"lang": "go", "task": "say", "id": "odd"}),
    "the least there can be": letter(said(["a"], {}), {"task": "say", "id": "odd"}),
    "nothing for empty": letter(said(["a"], None, {})),
    "more than is known": letter(
        said(["a"], {}, {"callbacks": None, "new": 1}), {**HEADERS, "trace": {"deep": [1]}}
    ),
    "null everywhere": letter(
        headers={**HEADERS, "eta": None, "retries": None, "timelimit": [None, None], "group": None}
    ),
    "protocol 1": letter(
        json.dumps(
            {"task": "say", "id": "protocol 1", "args": ["a"], "kwargs": {}, "retries": 0}
        ).encode(),
        {},
    ),
    "a body of plain text": letter(BODY.decode(), properties={"delivery_tag": "t1"}),
    "another encoding": letter(
        json.dumps([["a"], {}, None]).encode("utf-16"), content_encoding="utf-16"
    ),
    "the id only in the properties": letter(
        headers={"task": "say"},
        properties={"body_encoding": "base64", "correlation_id": "odd", "delivery_tag": "t"},
    ),
    "zlib": packed("application/x-gzip", zlib.compress(BODY)),
    "bzip2": packed("application/x-bz2", bz2.compress(BODY)),
    "lzma": packed("application/x-lzma", lzma.compress(BODY)),
    "a charset behind the type": letter(content_type="application/json; charset=utf-8"),
}

BURIED = {
    "pickle": (letter(content_type="application/x-python-serialize"), "task_serializer='json'"),
    "yaml": (letter(content_type="application/x-yaml"), "task_serializer='json'"),
    "an unknown type": (letter(content_type="application/x-own"), "'application/x-own'"),
    "an unknown compression": (packed("application/zstd", BODY), "task_compression"),
    "a wrong compression": (packed("bzip2", BODY), "is said to be bzip2"),
    "a bomb": (packed("zlib", zlib.compress(bytes(20 << 20))), "when it is decompressed"),
    "no base64": (letter("!!"), "base64 and is not"),
    "no JSON": (letter(b"{"), "can't be read as application/json"),
    "NaN": (letter(b"[[NaN], {}, null]"), "can't be read"),
    "an object": (letter(b"{}"), "is not [args, kwargs, embed]"),
    "args that are none": (letter(said({"x": 1}, {}, {})), "no message of Celery"),
    "a deep one": (letter(b"[" * 5000 + b"]" * 5000), "can't be read"),
    "an eta that is none": (letter(headers={**HEADERS, "eta": "tomorrow"}), "eta 'tomorrow'"),
    "a broken signature": (letter(said(["a"], {}, {"chain": [1]})), "a signature that can't be"),
    "arguments that don't fit": (
        letter(said(["a", "b"], {}, {}), {**HEADERS, "task": "add"}), "argument 'x'",
    ),
    "a type of the sender's": (
        letter(said([{"__type__": "own", "__value__": 1}], {}, {})), "kombu's type 'own'",
    ),
}  # fmt: skip


async def push(pair: Pair, *letters: bytes) -> None:
    async with redis.asyncio.Redis.from_url(pair.redis.url()) as client:
        await client.lpush("celery", *letters)


async def test_what_runs(pair: Pair) -> None:
    async with pair.app.worker():
        for what, message in RUN.items():
            pair.redis.empty()
            pair.ran.clear()
            # The same id each time; what tells them apart is the sending.
            await push(pair, message.replace(b'"odd"', json.dumps(what).encode()))

            assert await pair.get(what) == ["a", {}], what
            assert pair.ran == [["a", {}]], what


async def test_what_is_buried(pair: Pair) -> None:
    async with pair.app.worker():
        for what, (message, reason) in BURIED.items():
            message = message.replace(b'"odd"', json.dumps(what).encode())
            await push(pair, message)
            # Whoever waits for it is told as well.
            with pytest.raises(Failed) as told:
                await pair.get(what)
            assert reason in str(told.value), what
            with pytest.raises(JobFailed) as failed:
                await pair.app.handle(what).result()
            assert failed.value.failure is not None
            assert reason in failed.value.failure.message, what
            (job,) = await ledger_of(pair.app.store).get([what])
            assert job is not None
            kept = json.loads(job.payload)["message"]["raw"]
            assert base64.b64decode(kept) == message, what
        assert await pair.get(await pair.send("add", 2, 3)) == 5
    # The servers own list is empty, and nothing is left unacknowledged by one that has ended: in
    # one that is at work a result may be told before its message is acknowledged.
    assert pair.redis.say("EXISTS", "celery", "unacked", "unacked_index") == b":0\r\n"


async def test_no_envelope_at_all(pair: Pair) -> None:
    """Nobody can be told, but the bytes are there."""
    async with pair.app.worker():
        await push(pair, b"no json")
        assert await pair.get(await pair.send("add", 2, 3)) == 5
        jobs = await ledger_of(pair.app.store).find(task="celery-refused")
        kept = json.loads(jobs[0].payload)["message"]["raw"]
        assert base64.b64decode(kept) == b"no json"


async def test_values_of_kombu(pair: Pair) -> None:
    """Dates, ids and bytes are what the function's annotations say."""
    moment = datetime(2026, 11, 29, 12, tzinfo=UTC)
    id_ = UUID(int=7)
    values = [
        {"__type__": "datetime", "__value__": moment.isoformat()},
        {"__type__": "date", "__value__": "2026-11-29"},
        {"__type__": "uuid", "__value__": {"hex": id_.hex}},
        {"__type__": "bytes", "__value__": "abc"},
    ]
    async with pair.app.worker():
        await push(pair, letter(said(values, {}, {}), {"task": "when", "id": "when"}))
        assert await pair.get("when") == moment.isoformat()
    assert pair.ran == [[moment, date(2026, 11, 29), id_, b"abc"]]


async def test_msgpack_and_compression_of_a_real_producer(pair: Pair) -> None:
    async with pair.app.worker():
        for options in ({"serializer": "msgpack"}, {"compression": "gzip"}):
            assert await pair.get(await pair.send("add", 2, 3, options=options)) == 5


async def test_two_calls_of_one_id(pair: Pair) -> None:
    """Celery runs both; so do we. The same message again is run once."""
    one, other = letter(), letter(properties={"body_encoding": "base64", "delivery_tag": "t2"})
    async with pair.app.worker():
        await push(pair, one, other, one)
        assert await pair.get("odd") == ["a", {}]
        assert await pair.get(await pair.send("add", 2, 3)) == 5
    assert pair.ran.count(["a", {}]) == 2


async def test_an_eta_waits_in_our_store_and_what_has_expired_is_revoked(pair: Pair) -> None:
    """Cases C13 and C15: nothing is held unacknowledged, nothing runs early, nothing twice."""
    async with pair.app.worker():
        far = [await pair.send("add", 1, 1, options={"countdown": 90 * 86400}) for _ in range(5)]
        soon = await pair.send("add", 2, 2, options={"countdown": 1})
        late = await pair.send("add", 3, 3, options={"countdown": 3600, "expires": 1})
        assert await pair.get(soon) == 4
        with pytest.raises(Failed, match="REVOKED TaskRevokedError"):
            await pair.get(late)
        with pytest.raises(JobCancelled):
            await pair.app.handle(late).result()
        assert [await pair.app.handle(id_).status() for id_ in far] == ["queued"] * 5
    assert pair.redis.say("EXISTS", "celery", "unacked", "unacked_index") == b":0\r\n"
    assert pair.ran == [(2, 2)]


async def test_a_task_that_is_not_known_waits_for_one_who_knows_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case C34; and what waits so doesn't hold up what is known."""
    monkeypatch.setattr(intake, "AHEAD", 1)
    async with pair.app.worker():
        new, *_ = [await pair.send("new", n) for n in (1, 2, 3)]
        assert await pair.get(await pair.send("add", 2, 3)) == 5
        assert await pair.app.handle(new).status() == "queued"

    @pair.app.task
    async def later(number: int) -> int:
        return number + 1

    pair.app.celery_tasks({"new": later}, broker=pair.redis.url())
    async with pair.app.worker():
        assert await pair.get(new) == 2


async def test_calls_that_would_come_back(pair: Pair) -> None:
    """Sent to a queue that we take from ourselves, they would wait here for ever."""
    with pytest.raises(ConfigurationError, match="takes from itself"):
        pair.app.celery("theirs.note")
    with pytest.raises(ConfigurationError, match="one Celery broker"):
        pair.app.celery_tasks({}, broker="redis://elsewhere")
    with pytest.raises(ConfigurationError, match="celery_tasks"):
        Outlast("memory://").celery("theirs.note")
