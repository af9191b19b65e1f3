"""What the doctor says of Celery apps: of settings that lose, and of what stands on a server."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pika
import pytest
from celery import Celery
from kombu import entity
from tests.servers import RabbitServer, RedisServer, free_port, shared

from outlast.contrib.kombu.transport import MAX_REDELIVERIES
from outlast.doctor import Report, Severity
from outlast.doctor.celery import Setup, examine, findings_of
from outlast.doctor.celery_server import _limit
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Queue: Any = entity.Queue  # it has no types
OK, NOTE, WARNING, ERROR = Severity
SOUND = {
    "broker_transport_options": {"confirm_publish": True},
    "task_acks_late": True,
    "task_reject_on_worker_lost": True,
    "task_retry_on_worker_lost": True,
    "task_default_queue_type": "quorum",
    "task_time_limit": 600,
    "task_acks_on_timeout": False,
    "worker_eta_task_limit": 100,
    "worker_prefetch_multiplier": 1,
    "worker_cancel_long_running_tasks_on_connection_loss": True,
    "worker_soft_shutdown_timeout": 10,
    "worker_state_db": "revoked",
    "result_backend": "db+sqlite:///results.db",
    "result_expires": 0,
}


def made(broker: str = "amqp://", **settings: Any) -> Any:
    app: Any = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(SOUND | settings)

    def add(x: int, y: int) -> int:
        return x + y

    app.task(name="shop.add", shared=False)(add)
    app.finalize()
    return app


def setup_of(app: Any, driver: str = "amqp") -> Setup:
    tasks = {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}
    return Setup(conf=app.conf, tasks=tasks, driver=driver, queues=dict(app.amqp.queues))


def test_a_sound_app() -> None:
    findings = findings_of(setup_of(made()))
    assert [f.id for f in findings] == [f"CE{number}" for number in range(1, 18)]
    # That a stock worker discards what it doesn't know is not to be set.
    assert {f.id for f in findings if f.severity is not OK} == {"CE14"}
    assert {f.durability for f in findings} == {None, Durability.POWER}


def test_what_our_own_transport_has_no_part_in() -> None:
    """It buries what kills its workers, and neither forgets nor repeats what runs on."""
    lack: dict[str, Any] = {
        "task_retry_on_worker_lost": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_prefetch_multiplier": 4,
        "worker_soft_shutdown_timeout": 0,
    }
    findings = findings_of(setup_of(made(**lack), "outlast"))
    found = {finding.id: finding for finding in findings}
    assert (found["CE6"].severity, found["CE15"].severity) == (OK, OK)
    assert f"after {MAX_REDELIVERIES} times" in found["CE6"].read
    assert not [f for f in findings if "visibility timeout" in f.means]
    endless = setup_of(made(**lack, broker_transport_options={"max_redeliveries": None}), "outlast")
    assert {f.id: f.severity for f in findings_of(endless)}["CE6"] is NOTE
    redis = {f.id: f.means for f in findings_of(setup_of(made(**lack), "redis"))}
    assert all("visibility timeout" in redis[id] for id in ("CE11", "CE16"))


@pytest.mark.parametrize(
    ("id", "lack", "driver", "severity", "remedy"),
    [
        ("CE1", {"task_always_eager": True}, "amqp", ERROR, "task_always_eager = False"),
        ("CE2", {}, "filesystem", ERROR, "broker_url"),
        ("CE2", {}, "sql", ERROR, "broker_url"),
        ("CE2", {}, "redis", WARNING, "RabbitMQ"),
        ("CE2", {}, "zookeeper", NOTE, "count"),
        ("CE3", {"broker_transport_options": {}}, "amqp", ERROR, "confirm_publish"),
        ("CE4", {"task_default_queue_type": "classic"}, "amqp", WARNING, "quorum"),
        ("CE4", {"task_default_delivery_mode": "transient"}, "amqp", ERROR, "persistent"),
        ("CE4", {"task_queues": [Queue("a", durable=False)]}, "amqp", ERROR, "durable=True"),
        ("CE5", {"task_acks_late": False}, "amqp", ERROR, "task_acks_late = True"),
        (
            "CE6",
            {"task_reject_on_worker_lost": False, "task_retry_on_worker_lost": False},
            "amqp",
            ERROR,
            "task_reject_on_worker_lost = True",
        ),
        ("CE6", {"task_retry_on_worker_lost": False}, "amqp", NOTE, "retry_on_worker_lost"),
        ("CE7", {"task_acks_on_timeout": True}, "amqp", NOTE, "acks_on_timeout = False"),
        ("CE8", {"task_time_limit": None}, "redis", WARNING, "task_time_limit below 3600"),
        (
            "CE8",
            {"broker_transport_options": {"visibility_timeout": 86400}},
            "redis",
            WARNING,
            "a little above",
        ),
        ("CE9", {}, "redis", WARNING, "visibility_timeout above"),
        ("CE10", {"worker_eta_task_limit": None}, "amqp", WARNING, "worker_eta_task_limit"),
        ("CE11", {"worker_prefetch_multiplier": 0}, "amqp", WARNING, "= 1"),
        ("CE11", {"worker_prefetch_multiplier": 4}, "amqp", NOTE, "= 1"),
        ("CE12", {"accept_content": ["json", "pickle"]}, "amqp", WARNING, "accept_content"),
        ("CE12", {"task_serializer": "msgpack"}, "amqp", ERROR, "task_serializer"),
        ("CE13", {"result_backend": None}, "amqp", WARNING, "result_backend"),
        ("CE13", {"result_backend": "rpc://"}, "amqp", WARNING, "result_backend"),
        ("CE13", {"result_expires": 60}, "amqp", NOTE, "result_expires"),
        (
            "CE15",
            {"worker_cancel_long_running_tasks_on_connection_loss": False},
            "amqp",
            NOTE,
            "connection_loss = True",
        ),
        ("CE16", {"worker_soft_shutdown_timeout": 0}, "amqp", NOTE, "soft_shutdown"),
        ("CE17", {"worker_state_db": None}, "amqp", NOTE, "worker_state_db"),
    ],
)
def test_what_is_lacking(
    id: str, lack: dict[str, Any], driver: str, severity: Severity, remedy: str
) -> None:
    [found] = [f for f in findings_of(setup_of(made(**lack), driver)) if f.id == id]
    assert found.severity is severity
    assert found.means
    assert remedy in found.remedy
    # What loses tasks is said in the one word that deploy gates compare.
    assert (found.durability is Durability.MEMORY) == (
        severity is ERROR or (id, driver) == ("CE2", "redis")
    )


def test_on_outlasts_own_broker() -> None:
    """Nothing is held in memory there, and nothing that a worker doesn't know is deleted."""
    app = made("outlast+sqlite:///app.db", worker_eta_task_limit=None)
    found = {one.id: one for one in findings_of(setup_of(app, "outlast"))}
    assert {id: found[id].severity for id in ("CE2", "CE8", "CE10", "CE14")} == dict.fromkeys(
        ("CE2", "CE8", "CE10", "CE14"), OK
    )
    assert found["CE2"].durability == Durability.POWER
    less = made("outlast+sqlite:///app.db?durability=process")
    assert findings_of(setup_of(less, "outlast"))[1].durability is None


def test_one_task_that_is_not_like_the_others() -> None:
    app = made()

    def charge() -> None: ...

    app.task(shared=False, acks_late=False, default_retry_delay=7200, name="shop.charge")(charge)
    app.finalize()
    found = {f.id: f for f in findings_of(setup_of(app, "redis"))}
    assert found["CE5"].read == "acks_late is off for shop.charge"
    assert "shop.charge" in found["CE9"].read


@pytest.mark.parametrize(("version", "severity"), [("3.10.8", OK), ("4.1.0", ERROR)])
def test_quorum_queues_that_drop_what_was_delivered_often(version: str, severity: Severity) -> None:
    assert _limit(setup_of(made()), version).severity is severity
    dead = [Queue("a", queue_arguments={"x-queue-type": "quorum", "x-dead-letter-exchange": "d"})]
    assert _limit(setup_of(made(task_queues=dead)), version).severity is OK


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    server = RedisServer(appendfsync="always", requirepass="sesame")
    server.start()
    yield server
    server.remove()


def found(report: Report, id: str) -> tuple[Severity, str]:
    [finding] = [f for f in report.findings if f.id == id]
    return finding.severity, finding.read


@pytest.mark.needs("redis")
def test_a_real_server(server: RedisServer) -> None:
    broker = f"redis://:sesame@127.0.0.1:{server.port}/0"
    app = made(broker, result_backend=broker, broker_transport_options={})
    report = examine(app)
    assert "sesame" not in report.url
    assert report.reached
    assert found(report, "RD2") == (OK, "appendfsync always")
    assert found(report, "CE18") == (OK, "celery: 0 waiting; 0 unacknowledged")
    # Redis loses what is between BRPOP and HSET, whatever else is set.
    assert (report.accepted, report.exit_code) == (Durability.MEMORY, 1)
    task = app.tasks["shop.add"]
    task.delay(1, 2)
    task.apply_async((1, 2), countdown=7200)
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        while channel.basic_get("celery") is not None:  # taken and held, as a worker does
            pass
        severity, read = found(examine(app), "CE18")
        assert (severity, read) == (
            ERROR,
            "celery: 0 waiting; 2 unacknowledged, 1 with an eta beyond the visibility timeout",
        )
        channel.client.zadd("unacked_index", dict.fromkeys(channel.client.hkeys("unacked"), 1))
        channel.client.hset("unacked", mapping={"odd": "no JSON"})
        longer = made(broker, broker_transport_options={"visibility_timeout": 9000})
        severity, read = found(examine(longer), "CE18")
        assert (severity, read) == (
            WARNING,
            "celery: 0 waiting; 3 unacknowledged, 2 for longer than 9000 s",
        )


@pytest.mark.needs("redis")
def test_the_command(server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('shop', broker='redis://:sesame@127.0.0.1:{server.port}/1')\n"
        f"gone = Celery('gone', broker='redis://:sesame@127.0.0.1:{free_port()}/1')\n"
        "gone.conf.broker_connection_timeout = 1\n"
        "@app.task\ndef add(x, y): return x + y\n"
    )

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "outlast", "doctor", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("celery", "shop:app", "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    early = [each for each in document["findings"] if each["id"] == "CE5"]
    assert early[0]["severity"] == "error"
    assert early[0]["read"] == "acks_late is off for shop.add"
    assert early[0]["remedy"].startswith("app.conf.task_acks_late = True")
    assert "sesame" not in done.stdout + done.stderr
    # Looking is all: nothing was written to the server.
    assert run("celery", "shop:app", "--require", "memory").returncode == 1
    unreached = run("celery", "shop:gone")
    assert unreached.returncode == 3
    assert "CE0" in unreached.stdout
    assert "CE5" in unreached.stdout
    assert "sesame" not in unreached.stdout + unreached.stderr
    assert run("celery", "shop").returncode == 2
    assert "its Celery apps are" in run("celery", "shop:other").stderr
    assert run("celery", "shop:app", "--deep").returncode == 2
    assert run("celery").returncode == 2


@pytest.mark.needs("rabbitmq")
def test_a_real_rabbitmq() -> None:
    """Its version is read and its queues are looked at; none is made or changed by that."""
    node = shared(RabbitServer)
    channel_of: Any = pika.BlockingConnection
    with channel_of(pika.URLParameters(node.url())) as connection:
        channel = connection.channel()
        channel.queue_delete("doctored")
        app = made(node.url(), task_default_queue="doctored")
        report = examine(app)
        assert report.reached
        assert "guest:guest" not in report.url
        assert found(report, "CE18") == (NOTE, "no queue doctored")
        # With confirms, quorum and late acknowledgement, a task survives what it may; but since
        # 4.0 a message without a dead letter exchange is dropped when it was handed out often.
        if found(report, "CE19")[1].startswith("RabbitMQ 3."):
            assert (report.accepted, report.exit_code) == (Durability.POWER, 0)
        else:
            assert found(report, "CE19")[0] is ERROR
            assert (report.accepted, report.exit_code) == (Durability.MEMORY, 1)
        channel.queue_declare("doctored", durable=True, arguments={"x-queue-type": "quorum"})
        app.tasks["shop.add"].delay(1, 2)
        assert found(examine(app), "CE18") == (OK, "doctored: 1 waiting")
        channel.queue_delete("doctored")
