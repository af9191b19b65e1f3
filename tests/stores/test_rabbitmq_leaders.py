"""A queue without a leader: named by who adds, by who works and by the doctor; and no other's loss.

RabbitMQ 3.10 leaves one behind that was made less than half a second before it died: it finds the
queue in its books and no files of it, makes new ones, and nobody is told to stand for election.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from tests.rabbit import channel, ids, job, opened, take, when_it_is_back
from tests.servers import RabbitServer, shared

from outlast.doctor import Severity, examine
from outlast.errors import EnqueueUncertain, StoreUnavailable
from outlast.stores.rabbitmq import declaring, engine, leaders, outbox
from outlast.stores.rabbitmq.topology import line_arguments, plain_arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.job import Claim

pytestmark = pytest.mark.needs("rabbitmq")


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> RabbitServer:
    monkeypatch.setattr(declaring, "SETTLE", 0.0)
    monkeypatch.setattr(leaders, "PATIENCE", 1.0)
    broker = shared(RabbitServer)
    if "3.10" not in broker.evaluate("rabbit_misc:version()."):
        pytest.skip("later ones were not seen to leave such a queue behind")
    return broker


def lose_leader(broker: RabbitServer, name: str, vhost: str = "/") -> None:
    """What is left of its files goes, and the broker recovers it as it does when it starts."""
    found = broker.evaluate(
        f'{{ok, Q}} = rabbit_amqqueue:lookup({{resource, <<"{vhost}">>, queue, <<"{name}">>}}),'
        " P = amqqueue:get_pid(Q), ok = ra:force_delete_server(quorum_queues, P),"
        f' rabbit_quorum_queue:recover(<<"{vhost}">>, [Q]), element(1, ra:members(P, 300)).'
    )
    assert found.strip() == "timeout"


@pytest.fixture
def line(broker: RabbitServer, namespace: str) -> str:
    """A line's queue, as its maker has left it who died with the broker: not bound yet."""
    name = f"outlast/{namespace}/default/t"
    arguments = line_arguments((3, 10), f"outlast/{namespace}/default!dead")
    with channel(broker.url()) as raw:
        raw.queue_declare(name, durable=True, arguments=arguments)
    lose_leader(broker, name)
    return name


async def test_who_adds_is_told_and_nothing_is_sent_there(
    broker: RabbitServer, namespace: str, line: str
) -> None:
    async with opened(broker, namespace) as store:
        with pytest.raises(
            StoreUnavailable, match=rf"'{line}' has no leader.*delete_queue '{line}'"
        ):
            await store.add([job("a")])
        await store.add([job("beside", task="u")])
        with channel(broker.url()) as raw:
            raw.queue_delete(line)
        await store.add([job("b")])
        assert ids(await take(store)) == ["b"]


async def test_who_goes_on_adding_leaves_room_for_the_others(
    broker: RabbitServer,
    namespace: str,
    hurry: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is never confirmed is on its way for ever, and so much may be on its way at once."""
    monkeypatch.setattr(outbox, "WINDOW", 20)
    async with opened(broker, namespace) as store:
        await store.add([job("a"), job("beside", task="u")])
        lose_leader(broker, f"outlast/{namespace}/default/t")
        hurry()
        with pytest.raises(EnqueueUncertain, match="may or may not be stored"):
            await store.add([job(f"{n}") for n in range(20)])
        await when_it_is_back(store, job("after", task="u"))
        assert {"beside", "after"} == {*ids(await take(store, 2, tasks=["u"]))}


async def test_who_works_keeps_his_connection_for_the_others(
    broker: RabbitServer,
    namespace: str,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker takes a connection away over it, after 65 s or here 3: once, not for ever."""
    monkeypatch.setattr(leaders, "PATIENCE", 0.3)
    monkeypatch.setattr(engine, "LOOK", 0.0)
    broker.evaluate("application:set_env(kernel, net_ticktime, -2).")
    try:
        async with opened(broker, namespace) as store:
            await store.add([job("beside", task="u")])
            claims: list[Claim] = []
            async with asyncio.timeout(60):
                while f"'{line}' has no leader" not in caplog.text:
                    with suppress(StoreUnavailable):
                        await store.claim(["default"], ["t"], 1, 15.0, "w1")
                    await store.wait(["default"], 0.1)
                while not claims:
                    # A consumer that looks so often may begin anew just when it is asked.
                    with suppress(StoreUnavailable):
                        claims += await store.claim(["default"], ["t", "u"], 1, 15.0, "w1")
                    await store.wait(["default"], 0.1)
            [claim] = claims
            for _ in range(40):
                await store.wait(["nothing"], 0.1)
                assert await store.renew([claim], 15.0) == []
            assert (claim.job.id, claim.job.crashes) == ("beside", 0)
    finally:
        broker.evaluate("application:set_env(kernel, net_ticktime, 60).")


async def test_the_doctor_finds_it(broker: RabbitServer) -> None:
    vhost, name = broker.make_vhost("leaderless"), "outlast/default/default!dead"
    url = broker.url(vhost=vhost)
    with channel(url) as raw:
        raw.queue_declare(name, durable=True, arguments=plain_arguments((3, 10)))
    lose_leader(broker, name, vhost)
    report = await examine(url)
    [found] = [finding for finding in report.findings if finding.id == "RM3"]
    assert (found.severity, found.read) == (Severity.ERROR, f"no leader: {name}")
    assert report.exit_code == 1
