"""Each check of the doctor on Redis, on a sound server and on one that lacks just that."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.doctor.test_doctor import run
from tests.proof.patience import until
from tests.servers import RedisServer
from tests.stores.test_redis import opened

from outlast.chance import SystemChance
from outlast.doctor import Severity, examine
from outlast.doctor.redis import findings_of, is_bare
from outlast.doctor.torture_work import NAMESPACE, make
from outlast.job import Job
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.redis.address import Wish, read
from outlast.stores.redis.opening import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOUND = {
    "redis_version": "8.4.0",
    "role": "master",
    "connected_slaves": "0",
    "aof_enabled": "1",
    "aof_last_write_status": "ok",
    "appendfsync": "always",
    "no-appendfsync-on-rewrite": "no",
    "maxmemory-policy": "noeviction",
    "used_memory": "1000000",
    "run_id": "abc",
    "whoami": "jobs",
    "requirepass": "x",
    "config_file": "",
}
OK, NOTE, WARNING, ERROR = Severity


def test_a_sound_server() -> None:
    findings = findings_of(SOUND, NOTHING)
    assert {finding.id for finding in findings} == {f"RD{n}" for n in range(1, 10)}
    assert {f.id for f in findings if f.severity is not OK} == {"RD9"}
    assert [f.durability for f in findings if f.durability is not None] == [Durability.POWER]


def test_what_a_slow_sync_takes_with_it() -> None:
    """Redis answers before it writes then; one that is killed has said what it never wrote."""
    late = {"appendfsync": "everysec", "aof_delayed_fsync": "3"}
    found = {f.id: f.means for f in findings_of(SOUND | late, NOTHING)}
    assert "if it is killed while a sync takes long (RD8" in found["RD2"]
    assert "two seconds of acknowledged jobs" in found["RD8"]
    always = {f.id: f.means for f in findings_of(SOUND | {"aof_delayed_fsync": "3"}, NOTHING)}
    assert "acknowledged" not in always["RD8"]


@pytest.mark.parametrize(
    ("id", "lack", "severity", "read"),
    [
        ("RD1", {"aof_enabled": "0"}, ERROR, "off"),
        ("RD1", {"aof_last_write_status": "err"}, ERROR, "aof_last_write_status err"),
        (
            *("RD1", {"aof_enabled": "0", "time": "70", "rdb_last_save_time": "10"}),
            *(ERROR, "the last one 60 s ago"),
        ),
        ("RD2", {"appendfsync": "everysec"}, WARNING, "everysec"),
        ("RD2", {"aof-load-truncated": "no"}, NOTE, "aof-load-truncated no"),
        ("RD2", {"no-appendfsync-on-rewrite": "yes"}, WARNING, "always"),
        ("RD4", {"maxmemory-policy": "allkeys-lru"}, ERROR, "allkeys-lru"),
        ("RD4", {"evicted_keys": "5"}, WARNING, "5 keys"),
        ("RD4", {"maxmemory": "1100000"}, WARNING, "maxmemory"),
        ("RD5", {"role": "slave"}, ERROR, "replica"),
        ("RD5", {"connected_slaves": "2"}, NOTE, "2 replicas"),
        (
            *("RD5", {"min-replicas-to-write": "2", "min_slaves_good_slaves": "1"}),
            *(ERROR, "min-replicas-to-write 2, and 1 of them"),
        ),
        ("RD6", {"unseen": "1", "appendfsync": "everysec"}, WARNING, "no worker has seen yet"),
        ("RD6", {"unseen": "1"}, NOTE, "no worker has seen yet"),
        ("RD6", {"since": "100", "time": "3700"}, NOTE, "1.0 hours ago"),
        ("RD6", {"since": "100", "time": "99000"}, OK, "27.5 hours ago"),
        ("RD6", {"unseen": "1", "master_replid2": "ab"}, WARNING, "no worker has seen yet"),
        ("RD6", {"master_replid2": "ab"}, OK, "run abc"),
        ("RD7", {"whoami": "default", "requirepass": ""}, WARNING, "without a password"),
        (
            *("RD7", {"whoami": "default", "requirepass": "", "protected-mode": "no"}),
            *(WARNING, "protected-mode no"),
        ),
        ("RD7", {"bare": "1"}, NOTE, "without TLS"),
        ("RD7", {"redis_version": "8.2.1"}, NOTE, "Redis 8.2.1"),
        ("RD7", {"redis_version": "8.6.2"}, NOTE, "Redis 8.6.2"),
        ("RD7", {"redis_version": "8.6.3"}, OK, "8.6.3"),
        ("RD7", {"redis_version": "7.2.4", "valkey_version": "8.1.3"}, NOTE, "Valkey 8.1.3"),
        ("RD7", {"redis_version": "7.2.4", "valkey_version": "8.1.4"}, OK, "8.1.4"),
        ("RD8", {"aof_delayed_fsync": "3"}, WARNING, "3 delayed"),
        ("RD9", {"config_file": "/nowhere/redis.conf"}, NOTE, "can't be read"),
    ],
)
def test_what_is_lacking(id: str, lack: dict[str, str], severity: Severity, read: str) -> None:
    found = [f for f in findings_of(SOUND | lack, NOTHING) if f.id == id and f.severity is severity]
    assert len(found) == 1
    assert read in found[0].read


@pytest.mark.parametrize(
    ("lack", "wish", "id", "severity", "accepted"),
    [
        ({"appendfsync": "everysec", "waitaof": "1"}, NOTHING, "RD3", NOTE, Durability.PROCESS),
        (
            {"appendfsync": "everysec", "waitaof": "1", "synced": "1"},
            *(Wish(file=True), "RD3", OK, Durability.POWER),
        ),
        (
            {"appendfsync": "everysec", "waitaof": "1", "synced": "0"},
            *(Wish(file=True), "RD3", ERROR, Durability.PROCESS),
        ),
        (
            {"appendfsync": "everysec", "waitaof": "0"},
            *(Wish(file=True), "RD3", WARNING, Durability.PROCESS),
        ),
        ({"connected_slaves": "2"}, Wish(replicas=1), "RD5", NOTE, Durability.REPLICA),
        ({"connected_slaves": "2"}, Wish(replicas=2), "RD5", OK, Durability.REPLICA),
        ({"connected_slaves": "1"}, Wish(replicas=2), "RD5", ERROR, Durability.POWER),
    ],
)
def test_what_the_url_asks_to_be_waited_for(
    lack: dict[str, str], wish: Wish, id: str, severity: Severity, accepted: Durability
) -> None:
    findings = findings_of(SOUND | lack, wish)
    [found] = [finding for finding in findings if finding.id == id]
    assert found.severity is severity
    assert min(f.durability for f in findings if f.durability is not None) is accepted


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = RedisServer(appendfsync="always")
    server.start()
    yield server
    server.remove()


@pytest.mark.needs("redis")
async def test_a_server(server: RedisServer) -> None:
    store = connect(server.url())
    await store.open()
    await store.add([Job(id=SystemChance().uuid7(), task="t")])
    await store.close()
    size = server.say("DBSIZE")
    report = await examine(server.url())
    assert (report.accepted, report.exit_code) == (Durability.POWER, 0)
    server.say("CONFIG", "SET", "appendfsync", "everysec")
    report = await examine(server.url())
    assert (report.accepted, report.exit_code) == (Durability.PROCESS, 1)
    assert (await examine(server.url(), required=Durability.PROCESS)).exit_code == 0
    assert server.say("DBSIZE") == size
    server.kill()
    report = await examine(server.url())
    assert (report.accepted, report.exit_code, report.reached) == (None, 3, False)


async def run_of(url: str) -> tuple[Severity, str]:
    """What RD6 says."""
    [found] = [each for each in (await examine(url)).findings if each.id == "RD6"]
    return found.severity, f"{found.read}: {found.means}"


@pytest.mark.needs("redis")
async def test_a_server_that_was_started_again(server: RedisServer) -> None:
    async with opened(server.url(), namespace="shop") as store:
        await store.add([Job(id=SystemChance().uuid7())])
        assert (await run_of(server.url()))[0] is OK
        server.kill()
        server.start()
        severity, said = await run_of(server.url())
        assert (severity, "no worker has seen" in said, "is lost" in said) == (NOTE, True, True)
        await store.recover(10)
        severity, said = await run_of(server.url())
        assert (severity, "first seen by workers 0.0 hours ago" in said) == (NOTE, True)
        server.say("CONFIG", "SET", "appendfsync", "everysec")
        severity, said = await run_of(server.url())
        assert (severity, "was started again" in said) == (WARNING, True)


@pytest.mark.needs("redis")
async def test_a_server_that_has_taken_over(server: RedisServer) -> None:
    replica = RedisServer(appendfsync="always", repl_diskless_sync_delay="0")
    replica.start()
    try:
        replica.say("REPLICAOF", "127.0.0.1", str(server.port))
        until(lambda: b"state=online" in server.say("INFO", "replication"), 60.0, "it follows")
        async with opened(server.url(query="replicas=1")) as store:
            await store.add([Job(id=SystemChance().uuid7())])
        server.kill()
        replica.say("REPLICAOF", "NO", "ONE")
        severity, said = await run_of(replica.url())
        assert (severity, "has given way" in said) == (WARNING, True)
        async with opened(replica.url()) as store:
            await store.recover(10)
        severity, said = await run_of(replica.url())
        assert (severity, "has given way" in said) == (WARNING, True)
    finally:
        replica.remove()


@pytest.mark.needs("redis")
async def test_a_server_that_takes_no_writes_for_want_of_replicas(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        await store.add([Job(id=SystemChance().uuid7())])
    server.say("CONFIG", "SET", "min-replicas-to-write", "1")
    report = await examine(server.url())
    [found] = [each for each in report.findings if each.id == "RD5"]
    assert (found.severity, "0 of them keep up" in found.read) == (ERROR, True)
    assert str(server.folder) in next(each.read for each in report.findings if each.id == "RD1")


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("redis://10.0.0.1/0", True),
        ("redis://:x@far:1/0", True),
        ("rediss://far/0", False),
        ("redis://127.0.0.2:1", False),
        ("redis://localhost", False),
        ("unix:///run/redis.sock", False),
    ],
)
def test_who_may_listen_on_the_way(url: str, bare: bool) -> None:
    assert is_bare(read(url)) is bare


@pytest.mark.needs("redis")
async def test_settings_that_a_restart_takes_away(server: RedisServer) -> None:
    server.kill()
    path = server.folder / "redis.conf"
    path.write_text("appendonly yes\nappendfsync always\n")
    server.configuration = str(path)
    server.start()
    [before] = [f for f in (await examine(server.url())).findings if f.id == "RD9"]
    assert before.severity is OK
    server.say("CONFIG", "SET", "appendfsync", "everysec")
    [after] = [f for f in (await examine(server.url())).findings if f.id == "RD9"]
    assert (after.severity, after.remedy) == (WARNING, "CONFIG REWRITE")


@pytest.mark.needs("redis")
async def test_torture_where_there_never_was_a_job(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_URL", server.url())
    monkeypatch.setenv(NAMESPACE, "scratch")
    app = make()
    async with app:
        await app.tasks["work"].enqueue(0.0)
        assert (await app.store.depth("default")).ready == 1


@pytest.mark.needs("redis")
@pytest.mark.timeout(240)
async def test_torture(server: RedisServer) -> None:
    store = connect(server.url())
    await store.open()
    await store.add([Job(id=SystemChance().uuid7(), task="t")])
    answer = await asyncio.to_thread(run, server.url(), "--torture", "8")
    assert answer.returncode == 0, answer.stderr
    assert "lost 0, invented 0, stuck 0" in answer.stdout
    assert (await store.depth("default")).ready == 1, "the users' jobs stay"
    await store.close()
