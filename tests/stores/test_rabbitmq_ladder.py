"""The ladder of delays: which rungs hold a job, for how long by the broker's own account, and where
it comes out."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from pika.exceptions import ChannelClosedByBroker
from tests.proof.patience import until
from tests.rabbit import channel, due_at, job, take_all

from outlast.stores import connect
from outlast.stores.rabbitmq import declaring
from outlast.stores.rabbitmq.topology import level_arguments, level_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.servers import RabbitServer

pytestmark = pytest.mark.needs("rabbitmq")

DAY = 86400.0
LINE = "outlast/default/default/t"


async def send(url: str, delays: Sequence[float]) -> None:
    store: Any = connect(url)
    await store.open()
    try:
        await store.add([job(f"{delay:g}", delay=delay) for delay in delays])
    finally:
        await store.close()


def waiting(url: str, name: str = LINE) -> int:
    with channel(url) as raw:
        return int(raw.queue_declare(name, passive=True).method.message_count)


async def test_the_rungs_of_a_long_delay_add_up_to_it(
    broker: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a ladder whose rungs hold a job for a moment each, whatever they are called."""

    def hurried(level: int) -> dict[str, Any]:
        return level_arguments(level) | {"x-message-ttl": 20}

    monkeypatch.setattr(declaring, "level_arguments", hurried)
    url = broker.url(vhost=broker.make_vhost("hurried"))
    delays = [90 * DAY, 16 * 365 * DAY, 0.125]
    await send(url, delays)
    until(lambda: waiting(url) == len(delays), 60.0, "all have come out", beat=0.1)
    arrived = {found.id: properties.headers for found, properties in take_all(url, LINE)}
    for delay in delays:
        deaths = arrived[f"{delay:g}"]["x-death"]
        assert {(death["reason"], death["count"]) for death in deaths} == {("expired", 1)}
        levels = [int(death["queue"].removeprefix("outlast/delay/")) for death in deaths]
        assert len(set(levels)) == len(levels)
        assert sum(level_arguments(level)["x-message-ttl"] for level in levels) == delay * 1000


async def test_the_longest_rungs_hold_what_they_say(broker: RabbitServer) -> None:
    """All of the real ladder: none of its times is too long for the broker."""
    vhost = broker.make_vhost("ladder")
    began = time.time()
    await send(broker.url(vhost=vhost), [16 * 365 * DAY])
    length = 0.125 * 2**31
    assert 0 <= due_at(broker, vhost, 31) - began - length < 600.0


async def test_a_rung_that_another_has_just_made_is_left_alone_too(
    broker: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made it: a broker that dies in its first moments comes back with it empty."""
    # The first one is to be at it until the second has looked, on a busy machine as well.
    monkeypatch.setattr(declaring, "SETTLE", 8.0)
    url = broker.url(vhost=broker.make_vhost("young"))
    first = asyncio.create_task(send(url, [0.2]))
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(exists, url, level_name(1)):
            assert not first.done()
    monkeypatch.setattr(declaring, "SETTLE", 1.0)
    began = time.monotonic()
    await send(url, [0.25])
    assert time.monotonic() - began >= 1.0
    await first
    await asyncio.to_thread(until, lambda: waiting(url) == 2, 60.0, "both have come out", 0.1)


def exists(url: str, name: str) -> bool:
    with channel(url) as raw:
        try:
            raw.queue_declare(name, passive=True)
        except ChannelClosedByBroker:
            return False
    return True
