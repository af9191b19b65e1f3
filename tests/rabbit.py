"""What tests do to a RabbitMQ broker behind the back of our store."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pika

from outlast.stores.rabbitmq.letters import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.job import Job

__all__ = ["channel", "dead", "take_all"]


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
