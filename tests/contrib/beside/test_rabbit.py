"""On a real RabbitMQ: a real producer, a real worker of Celery's, queues that are as they are."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pika
import pytest
from msgspec.structs import replace
from pika.exceptions import ChannelClosedByBroker
from tests.contrib.beside.pair import PATIENCE, ROOT, Failed, Producer
from tests.proof.patience import until
from tests.proof.processes import import_path
from tests.servers import RabbitServer, shared

from outlast import Outlast, RetryPolicy, Status
from outlast.contrib.celery.beside import rabbit
from outlast.contrib.celery.beside.canvas import Result
from outlast.contrib.celery.beside.rabbit import CONTROL, RabbitBroker, RpcBackend

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("rabbitmq")
QUEUES: dict[str, dict[str, Any]] = {
    "ranked": {"x-max-priority": 10},
    "quorum": {"x-queue-type": "quorum"},
    "theirs": {"x-max-priority": 10},
}


@pytest.fixture
def server() -> RabbitServer:
    """With three queues that somebody has declared in ways of his own."""
    server = shared(RabbitServer)
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        channel = connection.channel()
        for name, arguments in QUEUES.items():
            channel.queue_delete(name)
            channel.queue_declare(name, durable=True, arguments=arguments)
    return server


def beside(server: RabbitServer, folder: Path, queue: str) -> Outlast:
    app = Outlast(f"sqlite:///{folder}/jobs.db")

    @app.task
    async def add(x: int, y: int) -> int:
        return x + y

    @app.task
    def boom(text: str) -> None:
        raise ValueError(text)

    app.celery_tasks(
        {"add": add, "boom": boom}, broker=server.url(), backend="rpc://", queues=[queue]
    )
    return app


def declared(server: RabbitServer) -> None:
    """The queues are there, with the arguments that they had: else this is refused."""
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        for name, arguments in QUEUES.items():
            connection.channel().queue_declare(name, durable=True, arguments=arguments)


@pytest.mark.parametrize("queue", ["ranked", "quorum"])
async def test_existing_queues_are_used_as_they_are(
    server: RabbitServer, tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C47: what Celery sends to a queue that was declared otherwise runs here, once each."""
    app = beside(server, tmp_path, queue)
    monkeypatch.setenv("BACKEND", "rpc://")
    producer = Producer(server.url(), QUEUES=QUEUES, task_default_queue=queue)
    try:
        async with app.worker():
            ids = [await asyncio.to_thread(producer.send, "add", n, n) for n in range(10)]
            for n, id_ in enumerate(ids):
                assert await asyncio.to_thread(producer.get, id_) == 2 * n
            bad = await asyncio.to_thread(producer.send, "boom", "no")
            with pytest.raises(Failed, match="FAILURE ValueError: no"):
                await asyncio.to_thread(producer.get, bad)
            jobs = await app.store.find(task="celery:add", limit=100)  # type: ignore[attr-defined]
            assert sorted(job.id for job in jobs) == sorted(ids)
            assert {job.attempt for job in jobs} == {1}
    finally:
        producer.close()
    declared(server)


async def test_calls_that_a_worker_of_celery_runs(server: RabbitServer, tmp_path: Path) -> None:
    app = beside(server, tmp_path, "ranked")
    log = tmp_path / "said"
    environment = {
        **os.environ, "PYTHONPATH": import_path(ROOT), "BROKER": server.url(), "BACKEND": "rpc://",
        "LOG": str(log), "C_FORCE_ROOT": "1", "CONFIG": json.dumps({"QUEUES": QUEUES}),
    }  # fmt: skip
    worker = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.contrib.beside.theirs",
         "worker", "-P", "solo", "-Q", "theirs"],
        cwd=tmp_path, env=environment, start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        async with app.worker():
            calls = [app.celery("theirs.note", queue="theirs").call(n) for n in range(5)]
            await app.enqueue_many(calls)

            def said() -> list[int]:
                lines = log.read_text().splitlines() if log.exists() else []
                return sorted(json.loads(line)["note"] for line in lines)

            await asyncio.to_thread(until, lambda: len(said()) >= 5, PATIENCE, "all five")
            assert said() == [0, 1, 2, 3, 4]
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(PATIENCE)
    declared(server)


async def test_a_queue_that_is_not_there(server: RabbitServer, tmp_path: Path) -> None:
    """Nothing is made of its own accord, and what is to be sent waits until there is one."""
    app = beside(server, tmp_path, "ranked")
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        connection.channel().queue_delete("later")
    async with app.worker():
        # What shares a write with it is sent once, however often this one is tried.
        beside_it = [app.celery("theirs.note", queue="theirs").call(n) for n in range(3)]
        missing = app.celery("theirs.note", queue="later").call(1)
        handle, *others = await app.enqueue_many([missing, *beside_it])
        async with asyncio.timeout(PATIENCE):
            while not (await handle.job()).failures:
                await asyncio.sleep(0)
        job = await handle.job()
        assert job.status in (Status.QUEUED, Status.RUNNING)
        assert job.failure is not None
        assert "later" in job.failure.message
        with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
            channel = connection.channel()
            channel.queue_declare("later", durable=True)
            for other in (handle, *others):
                await other.result(timeout=PATIENCE)
            assert channel.queue_declare("theirs", passive=True).method.message_count == 3


async def test_the_client_keeps_its_log_to_itself(
    server: RabbitServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever happens on its connection: ours says it in a line."""
    caplog.set_level(logging.INFO)
    caplog.clear()
    broker = RabbitBroker(server.url(), {})
    await broker.take(["quorum", "nowhere"], 100)
    link = await broker._publisher.link()
    server.evaluate(
        '[rabbit_networking:close_connection(P, "test") || P <- rabbit_networking:connections()].'
    )
    async with asyncio.timeout(PATIENCE):
        await link.end()
    await broker.close()
    assert [each.message for each in caplog.records if each.name.startswith("pika")] == []
    assert "nothing comes from queue 'nowhere'" in caplog.text


async def test_what_was_taken_and_not_settled_comes_again(server: RabbitServer) -> None:
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        for n in range(3):
            properties = pika.BasicProperties(headers={"task": "add", "id": f"id-{n}"})
            connection.channel().basic_publish("", "quorum", b"[[1, 2], {}, {}]", properties)

    async def took(broker: RabbitBroker) -> list[Any]:
        taken: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while len(taken) < 3:
                taken += await broker.take(["quorum"], 100)
        return taken

    first = RabbitBroker(server.url(), {})
    assert [one.again for one in await took(first)] == [False] * 3
    await first.close()
    second = RabbitBroker(server.url(), {})
    again = await took(second)
    assert [one.again for one in again] == [True] * 3
    await second.settle(again)
    await second.close()
    third = RabbitBroker(server.url(), {})
    assert await third.take(["quorum"], 100) == []
    await third.close()


async def test_an_ack_is_none_of_what_another_worker_has_taken(server: RabbitServer) -> None:
    """Two workers in one process share the connection; what the first took isn't stored yet."""

    async def took(count: int) -> list[Any]:
        found: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                found += await broker.take(["quorum"], count - len(found))
        return found

    def ids(some: list[Any]) -> list[str]:
        return [one.parcel.headers["id"] for one in some]

    publish(server, "quorum", *"abcdef")
    broker = RabbitBroker(server.url(), {})
    first, second, third = await took(2), await took(1), await took(2)
    await broker.settle(second)
    await broker.settle(third)
    await broker.give_back(first[:1])
    (again, last) = await took(2)
    assert sorted(ids([again, last])) == ["a", "f"]
    await broker.settle([again, last])
    await broker.close()
    broker = RabbitBroker(server.url(), {})
    left = await took(1)
    assert ids(left) == ids(first[1:]) == ["b"]
    await broker.settle(left)
    await broker.close()


def publish(server: RabbitServer, queue: str, *ids: str) -> None:
    """In this order: of what comes by several channels the broker promises none."""
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for id_ in ids:
            properties = pika.BasicProperties(headers={"task": "add", "id": id_})
            channel.basic_publish("", queue, b"[[1, 2], {}, {}]", properties)


async def taken(broker: RabbitBroker, queues: list[str], count: int) -> list[str]:
    """The ids of so many messages, each acknowledged with what came along with it."""
    found: list[str] = []
    async with asyncio.timeout(PATIENCE):
        while len(found) < count:
            some = await broker.take(queues, 100)
            found += [str(one.parcel.headers["id"]) for one in some if one.parcel is not None]
            if some:
                await broker.settle(some)
    return found


async def test_a_queue_that_is_refused_costs_no_message_of_another(server: RabbitServer) -> None:
    """What had been taken was dropped unstored, and then acknowledged along with the next."""
    broker = RabbitBroker(server.url(), {})
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        connection.channel().queue_declare("anothers", exclusive=True)
        publish(server, "quorum", "1", "2", "3")
        async with asyncio.timeout(PATIENCE):
            await broker.take(["quorum"], 0)
            while len(broker._lines["quorum"].ready) < 3:
                await broker.take(["quorum"], 0)
        found = await taken(broker, ["quorum", "anothers"], 3)
        publish(server, "quorum", "4")
        found += await taken(broker, ["quorum", "anothers"], 1)
    await broker.close()
    assert found == ["1", "2", "3", "4"]


async def test_a_queue_that_is_deleted_and_made_anew_is_consumed_again(
    server: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker then ends the consumer, and neither the channel nor the connection."""
    monkeypatch.setattr(rabbit, "ABSENT", 0.1)
    broker = RabbitBroker(server.url(), {})
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        channel = connection.channel()
        channel.queue_declare("remade", durable=True)
        publish(server, "remade", "1")
        assert await taken(broker, ["remade"], 1) == ["1"]
        channel.queue_delete("remade")
        channel.queue_declare("remade", durable=True)
        publish(server, "remade", "2")
        assert await taken(broker, ["remade"], 1) == ["2"]
        channel.queue_delete("remade")
    await broker.close()


@pytest.fixture
def producer(server: RabbitServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Producer]:
    monkeypatch.setenv("BACKEND", "rpc://")
    producer = Producer(server.url(), QUEUES=QUEUES, task_default_queue="ranked")
    yield producer
    producer.close()


def is_there(server: RabbitServer) -> bool:
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        try:
            connection.channel().exchange_declare(CONTROL, passive=True)
        except ChannelClosedByBroker:
            return False
    return True


@pytest.mark.parametrize("known", [True, False], ids=["there", "made"])
async def test_what_celery_revokes_is_heard(
    server: RabbitServer, tmp_path: Path, producer: Producer, known: bool
) -> None:
    """Of what waits here, and of what has yet to come; nobody of Celery's need have been there."""
    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        connection.channel().exchange_delete(CONTROL)
        if known:
            connection.channel().exchange_declare(CONTROL, "fanout", durable=False)
    app = beside(server, tmp_path, "ranked")

    async def ask(**asked: Any) -> Any:
        return await asyncio.to_thread(producer.ask, **asked)

    async with app.worker():
        if not known:
            # Before Celery's producer says anything: it would make the exchange itself.
            await asyncio.to_thread(until, lambda: is_there(server), PATIENCE, "the exchange")
        later = await asyncio.to_thread(
            producer.send, "add", 1, 2, options={"countdown": 3600, "priority": 1}
        )
        async with asyncio.timeout(PATIENCE):
            while await ask(state=later) != "REVOKED":
                await ask(revoke=[later, "early"])
        assert (await app.handle(later).job()).status is Status.CANCELLED
        await asyncio.to_thread(producer.send, "add", 3, 4, options={"task_id": "early"})
        with pytest.raises(Failed, match="REVOKED TaskRevokedError"):
            await asyncio.to_thread(producer.get, "early")
        assert (await app.handle("early").job()).attempt == 0
        sent = await asyncio.to_thread(producer.send, "add", 5, 6)
        assert await asyncio.to_thread(producer.get, sent) == 11


async def test_started_and_retry_are_told(
    server: RabbitServer, tmp_path: Path, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Outlast(f"sqlite:///{tmp_path}/jobs.db")
    gate = asyncio.Event()
    runs: list[int] = []
    told: list[str] = []
    note = RpcBackend.note

    async def noted(self: RpcBackend, results: Any) -> None:
        await note(self, results)
        told.extend(one.document["status"] for one in results)

    monkeypatch.setattr(RpcBackend, "note", noted)

    @app.task(retry=RetryPolicy(attempts=2, delay=0.1, jitter=False))
    async def flaky(number: int) -> int:
        runs.append(number)
        await gate.wait()
        if len(runs) == 1:
            raise ConnectionError("away")
        async with asyncio.timeout(PATIENCE):
            while len(told) < 3:
                await asyncio.sleep(0)
        return number

    app.celery_tasks(
        {"flaky": flaky}, broker=server.url(), backend="rpc://", queues=["ranked"],
        track_started=True,
    )  # fmt: skip
    async with app.worker():
        sent = await asyncio.to_thread(producer.send, "flaky", 7)
        async with asyncio.timeout(PATIENCE):
            while await asyncio.to_thread(producer.ask, state=sent) != "STARTED":
                pass
        gate.set()
        assert await asyncio.to_thread(producer.get, sent) == 7
    assert told == ["STARTED", "RETRY", "STARTED"]


async def test_nothing_is_told_after_the_end(server: RabbitServer) -> None:
    backend = RpcBackend(server.url())

    def result(status: str) -> Result:
        return Result(id="an-id", document={"status": status}, reply_to="answers")

    with pika.BlockingConnection(pika.URLParameters(server.url())) as connection:
        channel = connection.channel()
        channel.queue_declare("answers", exclusive=True)
        for status in ("STARTED", "RETRY"):
            await backend.note([result(status)])
        await backend.store([result("SUCCESS")], [])
        await backend.note([result("STARTED")])
        await backend.store([replace(result("SUCCESS"), id="another")], [])
        found = [channel.basic_get("answers", auto_ack=True)[2] for _ in range(5)]
    await backend.close()
    statuses = [json.loads(body)["status"] for body in found if body is not None]
    assert statuses == ["STARTED", "RETRY", "SUCCESS", "SUCCESS"]
