"""What goes to Celery's queues arrives once and whole, whatever is wrong with others beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import chain
from msgspec import json
from tests.contrib.beside.pair import shapes

from outlast.contrib.celery.beside.bodies import Refused
from outlast.contrib.celery.beside.canvas import check, following
from outlast.contrib.celery.beside.redis import RedisBroker
from outlast.contrib.celery.beside.wire import Call, write
from outlast.errors import StoreUnavailable

if TYPE_CHECKING:
    from tests.servers import RedisServer


@pytest.mark.needs("redis")
async def test_what_a_queue_did_not_take_is_not_taken_for_sent(redis: RedisServer) -> None:
    """Nor does it keep what shares a write with it from being sent."""
    redis.say("SET", "odd", "text")
    calls = [Call(id=str(n), task="t", queue=queue) for n, queue in enumerate(["odd", "fine"])]
    broker = RedisBroker(redis.url(), {})
    refused, sent = await broker.send(calls)
    assert isinstance(refused, StoreUnavailable)
    assert "'odd' takes nothing" in str(refused)
    assert sent is None
    redis.say("DEL", "odd")
    assert await broker.send(calls) == [None, None]
    assert [redis.say("LLEN", name) for name in ("odd", "fine")] == [b":1\r\n", b":1\r\n"]
    await broker.close()


def s(name: str, *args: Any) -> Any:
    return shapes.signature(name, args=args)


def told(sig: Any) -> Any:
    """A signature as a message has it."""
    return json.decode(json.encode(dict(sig), enc_hook=dict))


def test_stamps_go_on_with_what_follows() -> None:
    flow = chain(s("first"), s("second", 1))
    flow.stamp(tenant="acme", tries=[1, 2])
    step = told(flow.tasks[1])
    (call,) = following(Call(id="a", task="first", chain=[step]), [0]).calls
    ours = write(call).headers
    options = {name: value for name, value in step["options"].items() if name != "task_id"}
    theirs = shapes.amqp.as_task_v2("b", "second", (0, 1), **options).headers
    assert sorted(ours["stamped_headers"]) == sorted(theirs["stamped_headers"]) == [
        "tenant", "tries",
    ]  # fmt: skip
    assert ours["stamps"] == theirs["stamps"] == {"tenant": "acme", "tries": [1, 2]}


@pytest.mark.parametrize("where", ["chain", "callbacks", "errbacks", "chord"])
def test_what_could_not_be_sent_is_refused_beforehand(where: str) -> None:
    """Afterwards it would be tried for ever, since the work is done."""
    odd = told(s("odd").set(priority="high"))
    fine = told(s("odd").set(priority="3"))

    def call(sig: Any) -> Call:
        follows: Any = {where: sig if where == "chord" else [sig]}
        return Call(id="a", task="first", group="g", **follows)

    with pytest.raises(Refused, match="'odd' that can't be sent"):
        check(call(odd))
    check(call(fine))
