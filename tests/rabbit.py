"""What tests do to a RabbitMQ broker behind the back of our store."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pika

from outlast.stores.rabbitmq.letters import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import RabbitServer

    from outlast.job import Job

__all__ = ["channel", "dead", "due_at", "take_all"]


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
        f' <<"outlast/delay/{level:02}">>}}), {{ok, {{_, Found}}, _}} = ra:leader_query('
        "amqqueue:get_pid(Q), fun(State) -> rabbit_fifo:query_peek(1, State) end), Found."
    )
    [moment] = re.findall(r"\d{13}", found)
    return int(moment) / 1000
