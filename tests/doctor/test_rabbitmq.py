"""Each check of the doctor on RabbitMQ, on a sound broker and on one that lacks just that."""

from __future__ import annotations

import asyncio
import base64
import shlex
from collections import defaultdict
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest
from tests.doctor.test_doctor import run
from tests.doctor.test_restart import restarted
from tests.rabbit import channel
from tests.servers import RabbitServer, shared

from outlast.doctor import Severity, examine
from outlast.doctor.rabbitmq import RIGHTS, findings_of
from outlast.doctor.torture import Notes, _interrupted, _remembered
from outlast.job import Job, Status, done
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.rabbitmq.topology import level_arguments, level_name, line_arguments

if TYPE_CHECKING:
    from pathlib import Path

    from outlast.doctor import Finding, Report

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
    "local": False,
    "consumer_timeout": 1800.0,
    "types": {"outlast/default/default!dead": []},
    "silent": [],
    "default": "quorum",
    "any_name": False,
    "path": {"returned": True, "confirmed": True, "blocked": False},
    "management": {
        "tags": ["monitoring"],
        "queues": [LINE, *LADDER],
        "nodes": [NODE],
        "vhost": {"default_queue_type": "undefined"},
        "flags": [{"name": "quorum_queue", "state": "enabled", "stability": "required"}],
        "deprecated": [],
        "permissions": None,
        "guest": None,
    },
}
SHORT = {"returned": False, "confirmed": False, "blocked": True}
KNOWN = {
    "name": "guest",
    "hashing_algorithm": "rabbit_password_hashing_sha256",
    "password_hash": base64.b64encode(b"salt" + sha256(b"saltguest").digest()).decode(),
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
    assert unknown == {"RM3", "RM4", "RM7"}
    quick = findings_of(SOUND | {"management": None, "default": None, "path": None})
    unknown = {f.id for f in quick if "management API" in f.read}
    assert unknown == {"RM3", "RM4", "RM6", "RM7"}


def test_a_user_whom_the_management_api_tells_little() -> None:
    """Whoever has the tag ``management`` alone is told of queues, and of no node."""
    little = management(nodes=None, flags=None, deprecated=None, tags=["management"])
    unknown = {f.id: f for f in findings_of(SOUND | little) if "management API" in f.read}
    assert set(unknown) == {"RM7"}
    assert unknown["RM7"].remedy == "the tag monitoring for the user"
    assert unknown["RM7"].read == "the management API doesn't tell this user"


def test_a_broker_that_is_short_of_memory_takes_nothing() -> None:
    """Seen without the management API; and that nothing came back is no fault of the way there."""
    found = {f.id: f for f in findings_of(SOUND | {"management": None, "path": SHORT})}
    assert found["RM7"].severity is ERROR
    assert "takes no messages" in found["RM7"].read
    assert found["RM5"].severity is NOTE


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


@pytest.mark.parametrize(
    ("lack", "read"),
    [
        (
            {"flags": [{"name": "khepri_db", "state": "disabled", "stability": "stable"}]},
            "feature flags that are off: khepri_db",
        ),
        ({"deprecated": [{"name": "global_qos"}]}, "deprecated features in use: global_qos"),
    ],
    ids=["flags", "deprecated"],
)
def test_what_an_upgrade_will_meet(lack: dict[str, Any], read: str) -> None:
    kind, found = (f for f in findings_of(SOUND | management(**lack)) if f.id == "RM6")
    assert (kind.severity, kind.read) == (OK, "queues of others are quorum by default")
    assert (found.severity, found.read) == (NOTE, read)
    assert found.remedy


def test_a_flag_that_is_only_tried_out_may_be_off() -> None:
    flags = [{"name": "x", "state": "disabled", "stability": "experimental"}]
    assert len([f for f in findings_of(SOUND | management(flags=flags)) if f.id == "RM6"]) == 1


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
        ("RM3", {"silent": ["outlast/x"]}, ERROR, "no leader: outlast/x"),
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
        ("RM7", management(nodes=[NODE | {"disk_free_alarm": True}]), ERROR, "disk_free_alarm"),
        ("RM7", management(nodes=[NODE | {"running": False}]), ERROR, "a: not running"),
        *(
            (
                "RM7",
                management(nodes=[NODE | {f"{used}_used": 900, total: 1024}]),
                WARNING,
                f"{name} 900 of 1024",
            )
            for name, used, total in (
                ("fd", "fd", "fd_total"),
                ("sockets", "sockets", "sockets_total"),
                ("proc", "proc", "proc_total"),
                ("memory", "mem", "mem_limit"),
            )
        ),
        (
            "RM7",
            management(nodes=[NODE | {"disk_free": 60 << 20, "disk_free_limit": 50 << 20}]),
            WARNING,
            "60 MiB of disk, and below 50 it takes nothing",
        ),
        ("RM8", {"user": "guest"}, WARNING, "guest, with TLS, and not from this host"),
        ("RM8", {"user": "guest", "local": True}, WARNING, "guest"),
        ("RM8", management(tags=["administrator"]), WARNING, "an administrator"),
        ("RM8", {"any_name": True}, NOTE, "jobs may make queues of any name"),
        (
            "RM8",
            management(permissions={"configure": ".*", "write": "", "read": ""}),
            NOTE,
            "of any name: configure .*",
        ),
        ("RM8", management(guest=KNOWN), NOTE, "the user guest with the password guest"),
        ("RM8", {"tls": False}, NOTE, "without TLS"),
    ],
)
def test_what_is_lacking(id: str, lack: dict[str, Any], severity: Severity, read: str) -> None:
    found = [f for f in findings_of(SOUND | lack) if f.id == id]
    assert [f.severity for f in found] == [severity]
    assert read in found[0].read
    assert found[0].means


@pytest.mark.needs("rabbitmq")
async def test_a_real_broker(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        found: dict[str, Finding] = {}
        for report in [await examine(without), await examine(with_it)]:
            assert report.reached
            assert report.accepted is Durability.POWER
            assert report.exit_code == 0, report.findings
            assert {f.id for f in report.findings} == {f"RM{n}" for n in range(1, 10)}
            found = {f.id: f for f in report.findings}
            assert found["RM6"].read == "queues of others are classic by default"
            assert (found["RM8"].severity, found["RM8"].read) == (WARNING, "as guest, without TLS")
        assert caplog.messages == [], "it hangs up without a word"
        assert "quorum queues, on 1 nodes" in found["RM3"].read
        assert found["RM7"].read == "1 nodes, no alarm"
        await rights_of_others(server)
        await restarts(server, without, tmp_path)
        with channel(server.url()) as raw:
            raw.queue_delete("outlast/default/default!dead")
            raw.queue_declare("outlast/default/default!dead", durable=True)
        weak = await examine(without)
        assert weak.accepted is Durability.PROCESS
        assert weak.exit_code == 1
        assert "outlast/default/default!dead" in {f.id: f for f in weak.findings}["RM2"].read
        server.evaluate("vm_memory_monitor:set_vm_memory_high_watermark(0).")
        short = {f.id: f for f in (await examine(without)).findings}
        assert short["RM7"].severity is ERROR
        assert "takes no messages" in short["RM7"].read
    finally:
        server.remove()
    gone = await examine(server.url())
    assert (gone.reached, gone.exit_code) == (False, 3)


def told(report: Report, id: str) -> dict[str, Severity]:
    return {f.read: f.severity for f in report.findings if f.id == id}


async def rights_of_others(server: RabbitServer) -> None:
    """One who may do no more than outlast needs, and two who may do too much."""
    configure, write, read = (f'<<"{each}">>' for each in shlex.split(RIGHTS.replace("\\", r"\\")))
    server.evaluate(
        """[begin
          rabbit_auth_backend_internal:add_user(User, <<"secret">>, <<"test">>),
          rabbit_auth_backend_internal:set_tags(User, Tags, <<"test">>),
          rabbit_auth_backend_internal:set_permissions(User, Vhost, C, W, R, <<"test">>)
        end || {User, Tags, Vhost, C, W, R} <- ["""
        f"""{{<<"jobs">>, [], <<"/">>, {configure}, {write}, {read}}},"""
        """{<<"boss">>, [administrator], <<"/">>, <<".*">>, <<".*">>, <<".*">>},"""
        """{<<"some">>, [management], <<"/">>, <<".*">>, <<".*">>, <<".*">>}]]."""
    )
    management = f"management=http://127.0.0.1:{server.management}"
    url = server.url(user="jobs:secret", query=management)
    store = connect(url, namespace="rights")
    await store.open()
    await store.add([Job(id="a", task="t"), Job(id="b", task="t", delay=0.1)])
    while not (claims := await store.claim(["default"], ["t"], 1, 10.0, "w")):
        await store.wait(["default"], 1.0)
    await store.settle([done(claims[0])])
    await store.close()
    assert told(await examine(url), "RM8") == {"as jobs, without TLS": OK}
    boss = await examine(server.url(user="boss:secret", query=management))
    assert told(boss, "RM8") == {
        "as boss, without TLS, an administrator": WARNING,
        "boss may make queues of any name: configure .*": NOTE,
        "there is the user guest with the password guest": NOTE,
    }
    some = await examine(server.url(user="some:secret", query=management))
    assert told(some, "RM8") == {"some may make queues of any name": NOTE}
    assert told(some, "RM7") == {"the management API doesn't tell this user": NOTE}
    assert list(told(some, "RM3").values()) == [OK]


async def restarts(server: RabbitServer, url: str, tmp_path: Path) -> None:
    def again() -> None:
        server.evaluate("rabbit:stop(), rabbit:start().")

    answer = await restarted(tmp_path, again, partial(run, url, "--restart-cmd"))
    assert "500 of 500 accepted jobs are there again" in answer.stdout, answer.stderr
    assert answer.returncode == 0
    assert "outlast-verify" not in server.ctl("list_queues", "name", "--silent")


@pytest.mark.needs("rabbitmq")
@pytest.mark.timeout(240)
async def test_torture(tmp_path: Path) -> None:
    """With records and without: a worker dies amid a run each time. It leaves nothing there."""
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


def test_which_runs_a_kill_cut_off() -> None:
    notes: Notes = defaultdict(dict)
    notes["start"] = {"a": [(1, 0.0), (2, 1.0)], "b": [(2, 0.0)], "c": [(3, 0.0)], "d": [(1, 2.0)]}
    notes["end"] = {"a": [(2, 1.1)], "b": [(2, 0.1)], "d": [(1, 2.1)]}
    assert [_interrupted(notes, [(9.0, pid)]) for pid in (1, 2, 3)] == [1, 0, 1]
    assert _interrupted(notes, []) == 0


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
