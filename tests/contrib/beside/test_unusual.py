"""Messages that are odder than any client's: each runs, or is buried with its bytes."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from outlast import Outlast, Status

if TYPE_CHECKING:
    from tests.servers import RedisServer

    from outlast.job import Job

pytestmark = pytest.mark.needs("redis")
TASK = {"task": "there.add", "id": "an-id"}


def beside(server: RedisServer, name: str) -> Outlast:
    app = Outlast(f"memory://{name}")

    @app.task(name="add")
    async def add(x: int, y: int = 0) -> int:
        return x + y

    app.celery_tasks({"there.add": add}, broker=server.url(), backend=server.url())
    return app


def push(server: RedisServer, *raws: bytes, queue: str = "celery") -> None:
    client = Redis(port=server.port)
    for raw in raws:
        client.lpush(queue, raw)
    client.close()


def envelope(data: bytes, headers: Any = TASK, /, **fields: Any) -> bytes:
    message = {
        "body": base64.b64encode(data).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers,
        "properties": {"body_encoding": "base64", "delivery_tag": "a-tag"},
    }
    return json.dumps(message | fields).encode()


ARGS = b"[[1, 2], {}, {}]"
RUN = {
    "no id": envelope(ARGS, {"task": "there.add"}),
    "an id that is no ASCII": envelope(ARGS, TASK | {"id": "é\n\0" * 99}),
    "no delivery tag": envelope(ARGS, properties={"body_encoding": "base64"}),
    "no content type": envelope(ARGS, **{"content-type": None, "content-encoding": None}),
    "gzip": envelope(gzip.compress(ARGS), TASK | {"compression": "gzip"}),
    "an eta that is over": envelope(ARGS, TASK | {"eta": "2020-01-01T00:00:00"}),
    "a limit of one number": envelope(ARGS, TASK | {"timelimit": [None, 20]}),
    "retries as text": envelope(ARGS, TASK | {"retries": "2"}),
    "priority as text": envelope(
        ARGS, properties={"body_encoding": "base64", "priority": "9", "delivery_tag": 7}
    ),
    "spaces in it": b"  " + envelope(ARGS),
}

# No client of Celery's sends such; what a queue has is never lost for that, and harms nothing.
BURIED = {
    "a number as id": envelope(ARGS, TASK | {"id": 7}),
    "no properties but a text": envelope(ARGS, body=ARGS.decode(), properties=None),
    "an eta in seconds": envelope(ARGS, TASK | {"eta": 1.5}),
    "no JSON": b"\xff\xfe{",
    "a list": b"[1, 2]",
    "nothing": b"{}",
    "a task that is a number": envelope(ARGS, {"task": 7}),
    "headers that are a text": envelope(ARGS, "there.add"),
    "keywords that are a list": envelope(b"[[], [1], {}]"),
    "a charset that nobody knows": envelope(ARGS, **{"content-encoding": "klingon"}),
    "half a compression": envelope(zlib.compress(ARGS)[:-6], TASK | {"compression": "zlib"}),
    "a msgpack extension": envelope(
        b"\x93\x91\xd4\x05\x00\x80\x80", **{"content-type": "application/x-msgpack"}
    ),
}


async def ended(app: Outlast, count: int = 1) -> list[Job]:
    """The jobs of the messages, once so many have ended."""
    async with asyncio.timeout(60):
        while True:
            jobs = [job for job in await app.store.find(limit=100) if _is_message(job)]  # type: ignore[attr-defined]
            if sum(job.status.ended for job in jobs) >= count:
                return jobs
            await asyncio.sleep(0)


def _is_message(job: Job) -> bool:
    return (job.task or "").startswith("celery:") or job.task == "celery-refused"


@pytest.mark.parametrize("what", RUN)
async def test_it_runs(redis: RedisServer, what: str) -> None:
    app = beside(redis, f"run {list(RUN).index(what)}".replace(" ", "-"))
    async with app.worker():
        push(redis, RUN[what])
        (job,) = await ended(app)
    assert (job.status, job.result) == (Status.DONE, b"3"), job.failure
    assert redis.say("EXISTS", "celery", "unacked", "unacked_index") == b":0\r\n"


@pytest.mark.parametrize("what", BURIED)
async def test_it_is_buried_with_its_bytes(redis: RedisServer, what: str) -> None:
    raw = BURIED[what]
    app = beside(redis, f"bury-{list(BURIED).index(what)}")
    async with app.worker():
        push(redis, raw, envelope(ARGS, TASK | {"id": "after"}))
        jobs = await ended(app, 2)
    buried, after = sorted(jobs, key=lambda job: job.id == "after")
    assert (after.status, after.result) == (Status.DONE, b"3")
    assert buried.status is Status.DEAD
    assert buried.failure is not None
    assert buried.failure.message
    assert base64.b64decode(json.loads(buried.payload)["message"]["raw"]) == raw
    assert redis.say("EXISTS", "celery", "unacked", "unacked_index") == b":0\r\n"
