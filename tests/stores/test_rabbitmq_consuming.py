"""Whether a worker really consumes: it is told that it doesn't any more, or finds out by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.rabbit import channel, ids, job, opened, take

from outlast.job import done
from outlast.stores.rabbitmq import engine

if TYPE_CHECKING:
    from tests.servers import RabbitServer

    from outlast.stores.rabbitmq.store import RabbitStore

pytestmark = pytest.mark.needs("rabbitmq")


async def consumes(store: RabbitStore, id: str) -> None:
    """Give it a job and take that: from here on it has a consumer."""
    await store.add([job(id)])
    [claim] = await take(store)
    assert claim.job.id == id
    assert list(await store.settle([done(claim)])) == []


def forget_consumer(broker: RabbitServer, namespace: str, *more: str) -> None:
    """Have the broker's queue forget our consumer, with no word to us; and do more with it."""
    words = (
        '{ok, Q} = rabbit_amqqueue:lookup({resource, <<"/">>, queue,'
        f' <<"{line(namespace)}">>}})',
        "[{Ch, Tag}] = [{element(1, C), element(2, C)} || C <- rabbit_amqqueue:consumers(Q),"
        ' binary:match(element(2, C), <<"outlast.">>) =/= nomatch]',
        "{ok, _, _} = ra:process_command(amqqueue:get_pid(Q),"
        " rabbit_fifo:make_checkout({Tag, Ch}, cancel, #{}))",
    )
    broker.evaluate(", ".join((*words, *more)) + ".")


def line(namespace: str) -> str:
    return f"outlast/{namespace}/default/t"


async def test_a_consumer_that_the_broker_cancels(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is still there: so it is consumed from again, and at once."""
    monkeypatch.setattr(engine, "LOOK", 3600.0)  # it looks for nothing by itself
    async with opened(broker, namespace) as store:
        await consumes(store, "a")
        forget_consumer(
            broker, namespace, "rabbit_channel:send_command(Ch, {'basic.cancel', Tag, true})"
        )
        await consumes(store, "b")


async def test_a_consumer_that_is_gone_unnoticed(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker finds out by itself that it does not consume."""
    monkeypatch.setattr(engine, "LOOK", 0.0)  # it looks twice a second
    async with opened(broker, namespace) as store:
        await consumes(store, "a")
        forget_consumer(broker, namespace)
        await consumes(store, "b")


async def test_a_consumer_that_gets_nothing_though_there_is_something(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That there are consumers is not enough: this one is another's, who has his hands full."""
    monkeypatch.setattr(engine, "LOOK", 0.0)
    async with opened(broker, namespace) as store:
        await consumes(store, "a")
        with channel(broker.url()) as raw:
            raw.basic_qos(prefetch_count=1)
            raw.basic_consume(line(namespace), lambda *_: None)
            forget_consumer(broker, namespace)
            await store.add([job("his"), job("ours")])
            assert ids(await take(store)) == ["ours"]


async def test_what_was_sent_ahead_goes_to_others_when_nobody_here_asks(
    broker: RabbitServer, namespace: str
) -> None:
    """One that has time is sent ten; when it has none any more, they go to another, at no cost."""
    async with opened(broker, namespace) as busy, opened(broker, namespace) as other:
        await consumes(busy, "a")
        await busy.claim(["default"], ["t"], 10, 15.0, "w1")
        await busy.catch_up(["default"], ["t"])
        await busy.add([job(f"{n}") for n in range(5)])
        await busy.catch_up(["default"], ["t"])
        assert (await busy.depth("default")).ready == 5
        busy._running().intake._rest = 0.0
        claims = await take(other, 5)
        assert {(claim.job.attempt, claim.job.crashes) for claim in claims} == {(1, 0)}
