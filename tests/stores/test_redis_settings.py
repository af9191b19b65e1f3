"""What a Redis server keeps, by its settings: a server for each, started with a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.proof.patience import until
from tests.servers import REDIS_SETTINGS, ConfiguredRedis, shared
from tests.stores.test_redis import job, opened, take

from outlast.doctor import Severity, examine
from outlast.errors import DurabilityError
from outlast.job import Status, done
from outlast.store import Durability
from outlast.stores import connect

if TYPE_CHECKING:
    from outlast.doctor import Report

pytestmark = pytest.mark.needs("redis")
MEMORY, PROCESS, POWER = Durability.MEMORY, Durability.PROCESS, Durability.POWER

CLASSES = {
    "always": (POWER, ""),
    "everysec": (PROCESS, "CONFIG SET appendfsync always, CONFIG REWRITE"),
    "no": (PROCESS, "CONFIG SET appendfsync always, CONFIG REWRITE"),
    "rewrites": (PROCESS, "CONFIG SET no-appendfsync-on-rewrite no, CONFIG REWRITE"),
    "rdb": (MEMORY, "CONFIG SET appendonly yes, CONFIG SET appendfsync always"),
    "none": (MEMORY, "CONFIG SET appendonly yes, CONFIG SET appendfsync always"),
    "evicting": (MEMORY, "CONFIG SET maxmemory-policy noeviction"),
}
"""Of each setting, and what has to be changed for a better one."""


@pytest.fixture(params=REDIS_SETTINGS)
def setting(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(setting: str) -> ConfiguredRedis:
    """As it was started, and empty."""
    server = shared(ConfiguredRedis, setting)
    server.empty()
    return server


def found(report: Report, id: str) -> tuple[Severity, Durability | None]:
    [finding] = [each for each in report.findings if each.id == id]
    return finding.severity, finding.durability


def has_written(server: ConfiguredRedis) -> bool:
    info = server.say("INFO", "persistence")
    waits = b"aof_enabled:1" in info and b"aof_buffer_length:0\r" not in info
    return not waits and b"aof_pending_bio_fsync:1" not in info


async def test_less_is_refused_unless_it_was_asked_for(
    server: ConfiguredRedis, setting: str
) -> None:
    promised, remedy = CLASSES[setting]
    if promised < POWER:
        with pytest.raises(DurabilityError) as refused:
            await connect(server.url()).open()
        assert remedy in str(refused.value)
        assert f"?durability={promised}" in str(refused.value)
    async with opened(server.url(query=f"durability={promised}")) as store:
        assert store.durability is promised
        await store.add([job(), job()])
        assert list(await store.settle([done(claim) for claim in await take(store, 1)])) == []
        depth = await store.depth("default")
        assert (depth.ready, depth.done) == (1, 1)


async def test_what_doctor_says(server: ConfiguredRedis, setting: str) -> None:
    promised, remedy = CLASSES[setting]
    report = await examine(server.url())
    assert report.accepted is promised
    assert report.exit_code == int(promised < POWER)
    assert (await examine(server.url(query=f"durability={promised}"))).accepted is promised
    guilty = {"rdb": "RD1", "none": "RD1", "evicting": "RD4"}.get(setting, "RD2")
    assert found(report, guilty)[1] is promised
    assert (found(report, guilty)[0] is Severity.OK) is (promised is POWER)
    assert found(report, "RD9")[0] is Severity.OK, "that is what its file says"
    if remedy:
        assert any(remedy[:30] in finding.remedy for finding in report.findings)


async def test_what_a_kill_of_the_server_leaves(server: ConfiguredRedis, setting: str) -> None:
    """Where it writes at all before it answers, all; where it doesn't, what the snapshot had."""
    promised, _ = CLASSES[setting]
    url = server.url(query=f"durability={promised}")
    async with opened(url) as store:
        jobs = [job() for _ in range(20)]
        await store.add(jobs)
        claims = await take(store, 5)
        assert list(await store.settle([done(claim) for claim in claims])) == []
    # Amid a slow sync, everysec answers before it writes, for two seconds.
    until(lambda: has_written(server), 60.0, "it has written all")
    server.kill()
    server.start()
    async with opened(url) as store:
        left = [each for each in await store.get([each.id for each in jobs]) if each is not None]
        writes = setting not in ("rdb", "none")
        assert len(left) == (20 if writes else 0)
        assert sum(each.status is Status.DONE for each in left) == (5 if writes else 0)
