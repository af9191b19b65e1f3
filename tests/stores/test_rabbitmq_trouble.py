"""What a broker refuses, or leaves unanswered, at a bad moment: nobody waits for ever, and what
is sent later is stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.rabbit import alarm, channel, ids, job, opened, take, when_it_is_back
from tests.stores.proxy import proxied

from outlast.errors import EnqueueUncertain, StoreUnavailable
from outlast.stores.rabbitmq import engine, outbox
from outlast.stores.rabbitmq.declaring import Declaring
from outlast.stores.rabbitmq.topology import LINES

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import RabbitServer

    from outlast.stores.rabbitmq.topology import Place


pytestmark = pytest.mark.needs("rabbitmq")

NOT_STORED = (EnqueueUncertain, StoreUnavailable)
SELECT = b"\x00\x55\x00\x0a\x00"
"""``confirm.select`` on the wire."""


async def test_a_channel_that_the_broker_closes(broker: RabbitServer, namespace: str) -> None:
    """Somebody deletes our exchange. What is sent there costs the channel, and that once."""
    async with asyncio.timeout(60), opened(broker, namespace) as store:
        await store.add([job("a")])
        with channel(broker.url()) as raw:
            raw.exchange_delete(LINES)
        with pytest.raises(NOT_STORED, match="no exchange"):
            await store.add([job("b"), job("c")])
        await when_it_is_back(store, job("d"))
        assert {"a", "d"} <= set(ids(await take(store, 2)))


async def test_a_line_that_breaks_before_publishing_begins(
    broker: RabbitServer, namespace: str, hurry: Callable[[], None]
) -> None:
    """In the moment between the login and the first message."""
    async with (
        asyncio.timeout(60),
        proxied(broker.port) as proxy,
        opened(broker, namespace, port=proxy.port) as store,
    ):
        await store.add([job("a")])
        hurry()
        proxy.target = 1  # nobody is there
        proxy.cut_at(b"unknown")
        with pytest.raises(EnqueueUncertain):
            await store.add([job("unknown")])
        proxy.cut_at(SELECT)
        proxy.target = broker.port
        await when_it_is_back(store, job("b"))
        assert proxy.was_cut


async def test_a_new_line_on_a_broker_that_takes_nothing(
    broker: RabbitServer, namespace: str, hurry: Callable[[], None]
) -> None:
    """It does not even answer what is to be asked first, from the moment that it blocks us."""
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        with alarm(broker):
            hurry()
            with pytest.raises(NOT_STORED):
                await store.add([job("b")])
            store._running().outbox.blocked = ""  # as if its word had not come yet
            async with asyncio.timeout(30):
                with pytest.raises(StoreUnavailable, match="could not be declared"):
                    await store.add([job("c", task="new")])
        await when_it_is_back(store, job("d", task="new"))
        assert ids(await take(store, tasks=["new"])) == ["d"], "c was not stored"


async def test_consuming_keeps_nobody_from_hearing_that_nothing_is_confirmed(
    broker: RabbitServer, namespace: str, hurry: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both connections go silent; the one that consumes is waited for much longer."""
    monkeypatch.setattr(engine, "LOOK", 0.0)
    async with (
        proxied(broker.port) as proxy,
        opened(broker, namespace, port=proxy.port) as store,
    ):
        await store.add([job("a")])
        assert ids(await take(store)) == ["a"]
        hurry()
        proxy.silent = True
        async with asyncio.timeout(15):
            with pytest.raises(EnqueueUncertain, match="not confirmed within"):
                await store.add([job("b")])
        proxy.silent = False
        proxy.cut()


async def test_ids_that_amqp_has_no_room_for(broker: RabbitServer, namespace: str) -> None:
    long = "\N{SNOWMAN}" * 128
    async with asyncio.timeout(60), opened(broker, namespace) as store:
        await store.add([job(long), job("a")])
        assert ids(await take(store, 2)) == [long, "a"]


async def test_nothing_outlives_the_store(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue is asked whether it has a leader, and the store is closed before it answers."""
    asked, ended = asyncio.Event(), []
    mine = asyncio.get_running_loop()

    async def declare(self: Declaring, place: Place, level: int) -> bool:
        mine.call_soon_threadsafe(asked.set)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(asyncio.get_running_loop().is_running())
        return False

    monkeypatch.setattr(engine, "PATIENCE", 0.1)
    async with opened(broker, namespace) as store:
        monkeypatch.setattr(Declaring, "declare", declare)
        adding = asyncio.ensure_future(store.add([job("a")]))
        async with asyncio.timeout(60):
            await asked.wait()
        monkeypatch.setattr(outbox, "PATIENCE", 0.0)
    with pytest.raises((EnqueueUncertain, StoreUnavailable)):
        await adding
    assert ended == [True]
