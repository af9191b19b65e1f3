"""What a consumer claims ahead of what it may be given: few claims, and nothing is hoarded."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import kombu
import pytest
from tests.proof.patience import until

import outlast.contrib.kombu  # noqa: F401  kombu alone reads no entry points before a URL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


class Quick:
    """A clock on which next to no time passes."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def monotonic(self) -> float:
        return next(self._ticks) / 100


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Any]:
    with kombu.Connection(f"outlast+sqlite:///{tmp_path}/app.db") as connection:
        yield connection


def consumer(connection: Any, prefetch: int) -> tuple[Any, list[Any]]:
    got: list[Any] = []
    made = connection.Consumer(kombu.Queue("q"), on_message=got.append, accept=["json"])
    made.qos(prefetch_count=prefetch)
    made.consume()
    return made.channel, got


def publish(connection: Any, count: int) -> None:
    producer = connection.Producer()
    with producer.batch(max_size=count):
        for number in range(count):
            producer.publish(number, routing_key="q")


def test_a_quick_consumer_claims_many_at_once(
    connection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(connection, 400)
    channel, got = consumer(connection, prefetch=8)
    monkeypatch.setattr(channel.shared, "clock", Quick())
    limits: list[int] = []
    claim = channel.shared.hands.claim

    def counted(queues: Any, limit: int) -> Any:
        limits.append(limit)
        return claim(queues, limit)

    monkeypatch.setattr(channel.shared.hands, "claim", counted)
    for number in range(400):
        connection.drain_events(timeout=PATIENCE)
        assert [message.payload for message in got] == [number]
        got.pop().ack()
    assert len(limits) < 25, "it would have been 50 with what may be given out alone"
    assert max(limits) <= 8 + 100


def test_what_was_claimed_ahead_of_a_long_task_goes_back(connection: Any) -> None:
    publish(connection, 10)
    channel, got = consumer(connection, prefetch=1)
    channel._ahead = 5
    connection.drain_events(timeout=PATIENCE)
    until(lambda: channel._size("q") == 9, PATIENCE, "others may have them")
    for number in range(10):
        assert [message.payload for message in got] == [number], "they keep their places"
        assert not got[0].delivery_info.get("redelivered"), "nobody had them"
        got.pop().ack()
        if number < 9:
            connection.drain_events(timeout=PATIENCE)
