"""The same on RabbitMQ: whatever is published to a queue of Celery's runs, or is buried."""

from __future__ import annotations

import asyncio
import base64
import decimal
import gzip
import json
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pika
import pytest
from tests.servers import RabbitServer, shared

from outlast import Outlast, Status
from outlast.access import ledger_of

if TYPE_CHECKING:
    from pathlib import Path

    from outlast.job import Job

pytestmark = pytest.mark.needs("rabbitmq")
QUEUE = "unusual"
ARGS = b"[[1, 2], {}, {}]"
JSON = {"content_type": "application/json", "content_encoding": "utf-8"}

# What is said beside the body; a message has the name of the case as its id, unless it says one.
RUN: dict[str, tuple[bytes, dict[str, Any], dict[str, Any]]] = {
    "no id but a correlation": (ARGS, {"id": None}, JSON | {"correlation_id": "by-correlation"}),
    "no id at all": (ARGS, {"id": None, "far": 1 << 40}, JSON),
    "nothing about its type": (ARGS, {}, {}),
    "a charset in its type": (ARGS, {}, {"content_type": "application/json; charset=utf-8"}),
    "another charset": ('[[1, 2], {}, {"é": null}]'.encode("latin-1"), {},
                        JSON | {"content_encoding": "latin-1"}),
    "no embed": (b"[[1, 2], {}]", {}, JSON),
    "null for all that may be left out": (b"[[1, 2], null, null]",
        dict.fromkeys(("eta", "expires", "group", "retries", "timelimit", "lang"), None), JSON),
    "another language": (ARGS, {"lang": "js", "source": {"deep": [1, {"er": True}]}}, JSON),
    "values that JSON has not": (ARGS, {"when": datetime(2020, 1, 1, tzinfo=UTC),
        "much": decimal.Decimal("1.5"), "bytes": b"\xff\x00"}, JSON),
    "protocol 1": (b'{"task": "there.add", "id": "first", "args": [1, 2], "kwargs": {}}',
                   {"task": None, "id": None}, JSON),
    "gzip": (gzip.compress(ARGS), {"compression": "gzip"}, JSON),
    "msgpack": (msgspec.msgpack.encode([[1, 2], {}, {}]), {},
                {"content_type": "application/x-msgpack", "content_encoding": "binary"}),
    "keywords": (b'[[], {"y": 2, "x": 1}, {}]', {}, JSON),
    "a priority beyond Celery's": (ARGS, {}, JSON | {"priority": 255}),
    "retries as text": (ARGS, {"retries": "2"}, JSON),
    "an eta that is over": (ARGS, {"eta": "2020-01-01T00:00:00"}, JSON),
}  # fmt: skip
BURIED: dict[str, tuple[bytes, dict[str, Any], dict[str, Any]]] = {
    "no headers": (ARGS, {"task": None, "id": None}, {}),
    "nothing": (b"", {}, JSON),
    "no JSON": (b"\xff\xfe{", {}, JSON),
    "a number": (b"7", {}, JSON),
    "a task that is a number": (ARGS, {"task": 7}, JSON),
    "keywords that are a list": (b"[[], [1], {}]", {}, JSON),
    "arguments that are not its own": (b'[["one", "two", "three"], {}, {}]', {}, JSON),
    "a callback that is none": (b'[[1, 2], {}, {"callbacks": [7]}]', {}, JSON),
    "an eta in seconds": (ARGS, {"eta": 15}, JSON),
    "pickle": (b"\x80\x04N.", {}, {"content_type": "application/x-python-serialize"}),
    "yaml": (b"- [1, 2]", {}, {"content_type": "application/x-yaml"}),
    "a charset that nobody knows": (ARGS, {}, JSON | {"content_encoding": "klingon"}),
    "half a compression": (zlib.compress(ARGS)[:-6], {"compression": "zlib"}, JSON),
    "a compression that nobody knows": (ARGS, {"compression": "brotli"}, JSON),
    "a type that nobody knows": (ARGS, {}, {"content_type": "text/x-klingon"}),
}


async def test_each_runs_or_is_buried_with_its_bytes(tmp_path: Path) -> None:
    server = shared(RabbitServer)
    app = Outlast(f"sqlite:///{tmp_path}/jobs.db")

    @app.task(name="add")
    async def add(x: int, y: int = 0) -> int:
        return x + y

    app.celery_tasks({"there.add": add}, broker=server.url(), queues=[QUEUE])
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True)
        for name, (body, headers, properties) in (RUN | BURIED).items():
            told = {"task": "there.add", "id": name} | headers
            told = {
                word: one
                for word, one in told.items()
                if one is not None or word not in ("task", "id")
            }
            sent = pika.BasicProperties(headers=told or None, **properties)
            channel.basic_publish("", QUEUE, body, sent)
        async with app.worker():
            jobs = await ended(app, len(RUN) + len(BURIED))
        left = channel.queue_declare(QUEUE, passive=True).method.message_count
    assert left == 0
    ran = [job for job in jobs if job.task == "celery:there.add"]
    assert [job.id for job in ran if (job.status, job.result) != (Status.DONE, b"3")] == []
    named = RUN.keys() - {"no id but a correlation", "no id at all", "protocol 1"}
    # What says that it was retried there is a job of its own.
    assert {job.id.partition("/")[0] for job in ran} >= named | {"by-correlation", "first"}
    assert len(ran) == len(RUN)
    buried = {job.id: job for job in jobs if job.task == "celery-refused"}
    assert {job.status for job in buried.values()} == {Status.DEAD}
    kept = [base64.b64decode(json.loads(job.payload)["message"]["raw"]) for job in buried.values()]
    assert sorted(kept) == sorted(body for body, _, _ in BURIED.values())
    assert all(job.failure is not None and job.failure.message for job in buried.values())


async def ended(app: Outlast, count: int) -> list[Job]:
    async with asyncio.timeout(60):
        while True:
            found = await ledger_of(app.store).find(limit=200)
            jobs = [
                job
                for job in found
                if job.task in ("celery:there.add", "celery-refused") and job.status.ended
            ]
            if len(jobs) >= count:
                return jobs
            await asyncio.sleep(0)
