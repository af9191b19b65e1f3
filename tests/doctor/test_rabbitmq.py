"""Each check of the doctor on RabbitMQ, on a sound broker and on one that lacks just that."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from tests.doctor.test_doctor import run
from tests.rabbit import channel
from tests.servers import RabbitServer, shared

from outlast.doctor import Severity, examine
from outlast.doctor.rabbitmq import findings_of
from outlast.doctor.torture import Notes, _remembered
from outlast.job import Job, Status
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.rabbitmq.topology import level_arguments, level_name, line_arguments

if TYPE_CHECKING:
    from pathlib import Path

OK, NOTE, WARNING, ERROR = Severity
QUEUE = {"name": "outlast/default/default/t", "type": "quorum", "members": ["a"], "online": ["a"]}
QUORUM = {"x-queue-type": "quorum"}
SAFE = line_arguments((4, 1), "outlast/default/default!dead")
LINE = QUEUE | {"arguments": SAFE}
LADDER = [
    QUEUE | {"name": level_name(level), "arguments": level_arguments(level)} for level in range(3)
]
NODE = {"name": "a", "running": True, "mem_alarm": False, "disk_free_alarm": False}
SOUND: dict[str, Any] = {
    "product": "RabbitMQ",
    "version": "4.1.2",
    "can": {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True},
    "user": "jobs",
    "tls": True,
    "consumer_timeout": 1800.0,
    "types": {"outlast/default/default!dead": []},
    "path": {"returned": True, "confirmed": True},
    "management": {"queues": [LINE, *LADDER], "nodes": [NODE], "vhost": {}},
}


def management(**other: Any) -> dict[str, Any]:
    return {"management": SOUND["management"] | other}


def test_a_sound_broker() -> None:
    findings = findings_of(SOUND)
    assert [finding.id for finding in findings] == [f"RM{n}" for n in range(1, 10)]
    assert {f.id for f in findings if f.severity is not OK} == {"RM9"}
    assert {f.durability for f in findings} == {None, Durability.POWER}


def test_without_the_management_api() -> None:
    findings = findings_of(SOUND | {"management": None})
    assert [finding.id for finding in findings] == [f"RM{n}" for n in range(1, 10)]
    unknown = {f.id for f in findings if "management API" in f.read}
    assert unknown == {"RM3", "RM4", "RM6", "RM7"}


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ({"type": "classic", "storage_version": 2}, Durability.PROCESS),
        ({"type": "classic", "storage_version": 1}, Durability.POWER),
        ({"type": "classic", "durable": False}, Durability.MEMORY),
    ],
    ids=["version 2", "version 1", "passing"],
)
def test_what_other_queues_survive(kind: dict[str, Any], kept: Durability) -> None:
    found = {f.id: f for f in findings_of(SOUND | management(queues=[QUEUE, QUEUE | kind]))}
    assert (found["RM3"].severity, found["RM3"].durability) == (ERROR, kept)


def test_three_members_survive_a_machine() -> None:
    queue = QUEUE | {"members": ["a", "b", "c"], "online": ["a", "b"]}
    found = {f.id: f for f in findings_of(SOUND | management(queues=[queue]))}
    assert found["RM3"].durability is Durability.REPLICA


@pytest.mark.parametrize(
    ("id", "lack", "severity", "read"),
    [
        ("RM1", {"version": "3.9.29"}, ERROR, "3.9.29"),
        ("RM1", {"product": "LavinMQ"}, ERROR, "LavinMQ"),
        ("RM1", {"can": {}}, ERROR, "publisher_confirms"),
        ("RM2", {"types": {"outlast/x": ["x-overflow", "x-queue-type"]}}, ERROR, "outlast/x"),
        ("RM2", {"types": {"outlast/x": ["durable"]}}, ERROR, "outlast/x"),
        ("RM2", {"types": {"outlast/x": ["x-overflow"]}}, WARNING, "outlast/x (x-overflow)"),
        (
            "RM3",
            management(queues=[QUEUE | {"type": "classic"}]),
            ERROR,
            "not a durable quorum queue",
        ),
        ("RM3", management(queues=[QUEUE | {"online": []}]), ERROR, "no majority"),
        (
            "RM4",
            management(queues=[QUEUE | {"effective_policy_definition": {"message-ttl": 5}}]),
            WARNING,
            "message-ttl",
        ),
        (
            "RM4",
            management(queues=[LINE | {"arguments": SAFE | {"x-expires": 9}}]),
            WARNING,
            "expires",
        ),
        (
            "RM4",
            management(queues=[LINE | {"arguments": QUORUM}]),
            WARNING,
            "delivery-limit is not",
        ),
        (
            "RM4",
            management(queues=[LINE | {"arguments": SAFE | {"x-overflow": "drop-head"}}]),
            WARNING,
            "x-overflow is drop-head",
        ),
        (
            "RM4",
            management(queues=[LINE | {"effective_policy_definition": {"consumer-timeout": 5000}}]),
            WARNING,
            "consumer timeout 5 s, not 1800 s",
        ),
        ("RM5", {"path": {"returned": False, "confirmed": True}}, ERROR, "False"),
        ("RM5", {"path": None}, NOTE, "not tried"),
        ("RM7", management(nodes=[NODE | {"mem_alarm": True}]), ERROR, "mem_alarm"),
        ("RM7", management(nodes=[NODE | {"partitions": ["b"]}]), ERROR, "partitioned from b"),
        ("RM8", {"user": "guest"}, WARNING, "guest"),
        ("RM8", {"tls": False}, NOTE, "without TLS"),
    ],
)
def test_what_is_lacking(id: str, lack: dict[str, Any], severity: Severity, read: str) -> None:
    found = [f for f in findings_of(SOUND | lack) if f.id == id]
    assert [f.severity for f in found] == [severity]
    assert read in found[0].read
    assert found[0].means


@pytest.mark.needs("rabbitmq")
async def test_a_real_broker() -> None:
    """With its management API and without; sound, and with a classic queue of our name."""
    server = RabbitServer(plugins=["rabbitmq_management"])
    server.start()
    try:
        store = connect(server.url())
        await store.open()
        await store.add([Job(id="a", task="t", delay=60.0)])
        await store.close()
        with_it = server.url(query=f"management=http://127.0.0.1:{server.management}")
        without = server.url(query="management=http://127.0.0.1:1")
        reports = [await examine(without), await examine(with_it)]
        for report in reports:
            assert report.reached
            assert report.accepted is Durability.POWER
            assert report.exit_code == 0, report.findings
            assert {f.id for f in report.findings} == {f"RM{n}" for n in range(1, 10)}
        found = {f.id: f for f in reports[1].findings}
        assert "quorum queues, on 1 nodes" in found["RM3"].read
        with channel(server.url()) as raw:
            raw.queue_delete("outlast/default/default!dead")
            raw.queue_declare("outlast/default/default!dead", durable=True)
        weak = await examine(without)
        assert weak.accepted is Durability.PROCESS
        assert weak.exit_code == 1
        assert "outlast/default/default!dead" in {f.id: f for f in weak.findings}["RM2"].read
    finally:
        server.remove()
    gone = await examine(server.url())
    assert (gone.reached, gone.exit_code) == (False, 3)


@pytest.mark.needs("rabbitmq")
@pytest.mark.timeout(240)
async def test_torture(tmp_path: Path) -> None:
    """With records and without. It leaves nothing on the broker."""
    server = shared(RabbitServer)
    vhost = server.make_vhost("torture")
    records = f"sqlite:///{tmp_path}/records.db"
    await _made(records)
    url = server.url(vhost=vhost)
    answers = await asyncio.gather(
        *(
            asyncio.to_thread(run, each, "--torture", "2")
            for each in (url, f"{url}?records={records}")
        )
    )
    for answer in answers:
        assert answer.returncode == 0, answer.stdout + answer.stderr
        assert "lost 0, invented 0, stuck 0" in answer.stdout
    for kind in ("list_queues", "list_exchanges"):
        assert "outlast-verify" not in server.ctl(kind, "-p", vhost, "name", "--silent")


async def _made(url: str) -> None:
    """The file, and its tables."""
    store = connect(url)
    await store.open()
    await store.close()


@pytest.mark.parametrize(
    ("noted", "left", "found"),
    [
        ({"added": "ab", "end": "ab"}, 0, {"a": Status.DONE, "b": Status.DONE}),
        ({"added": "ab", "start": "b", "end": "a"}, 1, {"a": Status.DONE, "b": Status.QUEUED}),
        ({"added": "ab", "end": "a"}, 0, {"a": Status.DONE}),
    ],
    ids=["fine", "stuck", "lost"],
)
def test_what_a_broker_forgets_the_tasks_have_noted(
    noted: dict[str, str], left: int, found: dict[str, Status]
) -> None:
    notes: Notes = defaultdict(dict)
    for word, ids in noted.items():
        notes[word] = {id: [(1, 0.0)] for id in ids}
    assert _remembered(notes, left) == found
