"""On RabbitMQ: a worker of ours killed on a message's way, and the broker; nothing is lost."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pika
import pytest
from celery import chain, signature
from tests.contrib.beside.pair import PATIENCE, Producer, shapes
from tests.contrib.beside.workers import Workers
from tests.proof.patience import linger, until
from tests.servers import RabbitServer, shared

from outlast.stores.rabbitmq.declaring import SETTLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.needs("rabbitmq"), pytest.mark.timeout(300)]

MANY = 10
QUEUES: dict[str, dict[str, Any]] = {"ours": {"x-queue-type": "quorum"}, "others": {}}


@pytest.fixture
def server() -> RabbitServer:
    server = shared(RabbitServer)
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        channel = connection.channel()
        for name, arguments in QUEUES.items():
            channel.queue_delete(name)
            channel.queue_declare(name, durable=True, arguments=arguments)
    return server


@pytest.fixture
def workers(server: RabbitServer, tmp_path: Path) -> Iterator[Workers]:
    """One of Celery's runs already; ours is started when all is sent."""
    config = json.dumps({"QUEUES": QUEUES})
    workers = Workers(tmp_path, server.url(), BACKEND="rpc://", CONFIG=config)
    yield workers
    workers.close()


def send(server: RabbitServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of a task of ours and one of Celery's. Celery asks for no confirms by itself."""
    monkeypatch.setenv("BACKEND", "rpc://")
    confirmed = {"confirm_publish": True}
    producer = Producer(
        server.url(), QUEUES=QUEUES, task_ignore_result=True, broker_transport_options=confirmed
    )
    for number in range(MANY):
        ours = signature("ours.add", args=(number, 100), app=shapes).set(queue="ours")
        theirs = signature("theirs.note", app=shapes).set(queue="others")
        producer.ask(apply=chain(ours, theirs))
    producer.close()


def all_noted(workers: Workers) -> None:
    wanted = {100 + number for number in range(MANY)}
    until(lambda: set(workers.said("note")) >= wanted, 2 * PATIENCE, "all are noted")
    assert {tuple(pair) for pair in workers.said("add")} == {(n, 100) for n in range(MANY)}


@pytest.mark.parametrize("step", ["after _store"])
def test_a_worker_killed_once(
    step: str, server: RabbitServer, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.celery("-Q", "others")
    send(server, monkeypatch)
    workers.ours(DIE=step)
    all_noted(workers)
    assert (workers.folder / "died").exists(), "it was not killed"
    # Nothing had run: what is stored is known by its id when the broker gives it out again.
    assert max(Counter(map(tuple, workers.said("add"))).values()) == 1


def test_the_broker_killed(
    server: RabbitServer, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once after everything was sent and confirmed; both run, ours may still be connecting.

    Not before the queues are settled: RabbitMQ 3.10 that is killed within half a second of a quorum
    queue's declaration comes back with it empty, whoever made it and whatever it had confirmed.
    Queues that Celery is given are its users' to make, so we answer for none of that.
    """
    workers.celery("-Q", "others")
    linger(SETTLE)
    workers.ours()
    send(server, monkeypatch)
    server.kill()
    server.start()
    all_noted(workers)
