"""A message that kills whoever gets it: given out again so many times, alone, and then buried."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import kombu
import pytest
from tests.contrib.kombu.rig import PATIENCE, Rig
from tests.contrib.kombu.store import look
from tests.proof.patience import until

from outlast.contrib.kombu.channel import CAREFUL
from outlast.errors import ConfigurationError
from outlast.job import Status

if TYPE_CHECKING:
    from pathlib import Path

PAUSE = 0.2
"""Seconds in which a message that must not come doesn't."""


def test_a_message_that_comes_back_too_often_is_buried_with_its_bytes(rig: Rig) -> None:
    options = {"max_redeliveries": 2}
    with kombu.Connection(rig.broker, transport_options=options) as connection:
        channel = connection.default_channel
        producer = connection.Producer()
        producer.publish({"poison": 1}, routing_key="q")
        producer.publish("next", routing_key="q")
        for delivery in range(3):
            message = channel.basic_get("q")
            assert message.payload == {"poison": 1}
            assert bool(message.delivery_info.get("redelivered")) == (delivery > 0)
            message.requeue()
        message = channel.basic_get("q")
        assert message.payload == "next"
        message.ack()
    _, (buried,) = look(rig, "q", Status.DEAD)
    assert json.loads(json.loads(buried.payload)["body"]) == {"poison": 1}
    assert buried.failure is not None
    assert buried.failure.kind == "crash"
    assert "given out 3 times" in buried.failure.message


def test_what_came_back_often_is_given_out_alone(rig: Rig) -> None:
    """So that it takes nobody along, and only its own deliveries are counted."""
    with kombu.Connection(rig.broker) as connection:
        producer, channel = connection.Producer(), connection.default_channel
        producer.publish(0, routing_key="q")
        for _ in range(CAREFUL):
            channel.basic_get("q").requeue()
        for number in (1, 2):
            producer.publish(number, routing_key="q")
        got: list[Any] = []
        consumer = connection.Consumer(kombu.Queue("q"), on_message=got.append, accept=["json"])
        consumer.qos(prefetch_count=10)
        consumer.consume()
        connection.drain_events(timeout=PATIENCE)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=PAUSE)
        assert [message.payload for message in got] == [0]
        got[0].ack()
        for _ in range(2):
            connection.drain_events(timeout=PATIENCE)
        assert [message.payload for message in got] == [0, 1, 2]
        for message in got[1:]:
            message.ack()


def test_a_limit_that_is_none_is_refused_with_words(tmp_path: Path) -> None:
    options = {"max_redeliveries": "often"}
    url = f"outlast+sqlite:///{tmp_path}/app.db"
    with (
        pytest.raises(ConfigurationError, match="'often'"),
        kombu.Connection(url, transport_options=options) as connection,
    ):
        connection.connect()


def test_a_task_that_kills_its_process_is_buried_and_others_go_on(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_redeliveries=1)
    try:
        rig.worker("-c", "1", "-P", "prefork", task_reject_on_worker_lost=True)
        rig.send("die", 1)
        for number in (2, 3):
            rig.send("note", number)
        rig.wait_for(2, 3)
        until(lambda: look(rig)[0].dead == 1, PATIENCE, "it is buried")
        assert rig.starts() == [1, 1]
        assert "is buried" in rig.text()
    finally:
        rig.close()
