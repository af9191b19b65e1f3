"""What tests do with our store on RabbitMQ, and to the broker behind its back."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pika

from outlast.errors import EnqueueUncertain, StoreUnavailable
from outlast.job import Job
from outlast.stores import connect
from outlast.stores.rabbitmq.letters import read
from outlast.stores.rabbitmq.store import RabbitStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tests.servers import RabbitServer

    from outlast.job import Claim

__all__ = [
    "alarm", "channel", "consumer_timeout", "dead", "due_at", "ids", "job", "nothing", "opened",
    "take", "take_all", "until_lost", "when_it_is_back",
]  # fmt: skip


@contextmanager
def channel(url: str) -> Iterator[Any]:
    """A channel of the blocking client, closed at the end."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def take_all(url: str, queue: str) -> list[tuple[Job, Any]]:
    """The messages of an AMQP queue as jobs, with their properties; they are gone then."""
    found: list[tuple[Job, Any]] = []
    with channel(url) as raw:
        while True:
            method, properties, body = raw.basic_get(queue)
            if method is None:
                return found
            raw.basic_ack(method.delivery_tag)
            found.append((read(body)[0], properties))


def dead(url: str, namespace: str, queue: str = "default") -> list[Job]:
    """The dead of a queue."""
    return [job for job, _ in take_all(url, f"outlast/{namespace}/{queue}!dead")]


def due_at(server: RabbitServer, vhost: str, level: int) -> float:
    """When the one job of a rung goes on from there, as the broker has noted with it."""
    found = server.evaluate(
        f'{{ok, Q}} = rabbit_amqqueue:lookup({{resource, <<"{vhost}">>, queue,'
        f' <<"outlast/delay/{level:02}">>}}), Pid = amqqueue:get_pid(Q), {{ok, {{_, Found}}, _}} ='
        " try ra:leader_query(Pid, fun(State) -> rabbit_fifo:query_peek(1, State) end)"
        # From 4.1 on it takes no functions that were made here.
        " catch error:function_clause -> ra:leader_query(Pid, {rabbit_fifo, query_peek, [1]}) end,"
        " Found."
    )
    [moment] = re.findall(r"\d{13}", found)
    return int(moment) / 1000


@contextmanager
def consumer_timeout(broker: RabbitServer, seconds: float) -> Iterator[None]:
    """For channels that are opened meanwhile; the broker looks each minute, and here more often."""
    get, put = "application:get_env(rabbit, {})", "application:set_env(rabbit, {}, {})"
    names = ("consumer_timeout", "channel_tick_interval")
    was = broker.evaluate(f"[element(2, E) || E <- [{', '.join(map(get.format, names))}]].")
    before = was.strip().strip("[]").split(",")
    mine = (int(seconds * 1000), 100)
    broker.evaluate(f"{', '.join(map(put.format, names, mine))}.")
    try:
        yield
    finally:
        broker.evaluate(f"{', '.join(map(put.format, names, before))}.")


@contextmanager
def alarm(broker: RabbitServer) -> Iterator[None]:
    """The broker is short of memory, as it believes."""
    broker.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
    try:
        yield
    finally:
        broker.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")


# -- through our store


def job(id: str, **fields: Any) -> Job:
    return Job(**{"id": id, "task": "t"} | fields)


def ids(claims: Sequence[Claim]) -> list[str]:
    return [claim.job.id for claim in claims]


@asynccontextmanager
async def opened(
    broker: RabbitServer, namespace: str, *, port: int | None = None, query: str = ""
) -> AsyncIterator[RabbitStore]:
    store = connect(broker.url(port=port, query=query), namespace=namespace)
    assert isinstance(store, RabbitStore)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def take(
    store: RabbitStore, many: int = 1, *, queue: str = "default", tasks: Sequence[str] = ("t",)
) -> list[Claim]:
    """Claim so many, as a worker would that has time; in the end they come."""
    found: list[Claim] = []
    async with asyncio.timeout(60):
        while len(found) < many:
            found += await store.claim([queue], tasks, many - len(found), 15.0, "w1")
            if len(found) < many:
                await store.wait([queue], 5.0)
    return found


async def nothing(store: RabbitStore, *, tasks: Sequence[str] = ("t",)) -> bool:
    await store.catch_up(["default"], tasks)
    return not await store.claim(["default"], tasks, 10, 15.0, "w1")


async def until_lost(store: RabbitStore, claim: Claim) -> None:
    async with asyncio.timeout(60):
        while not await store.renew([claim], 15.0):
            await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=0.01)


async def when_it_is_back(store: RabbitStore, job: Job) -> None:
    """Add it, as soon as the broker takes it; perhaps more than once."""
    async with asyncio.timeout(60):
        while True:
            try:
                await store.add([job])
                return
            except (EnqueueUncertain, StoreUnavailable):
                pass
