"""What is waited for after a write: the server's file, and its replicas."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, cast

import pytest
from tests.fakes import FakeClock
from tests.proof.patience import until
from tests.servers import ConfiguredRedis, RedisServer, shared
from tests.stores.test_redis import job, opened, take

from outlast.doctor import Severity, examine
from outlast.errors import (
    ConfigurationError,
    DurabilityError,
    EnqueueUncertain,
    StoreUnavailable,
)
from outlast.job import done
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.redis import safe
from outlast.stores.redis.address import Wish, read
from outlast.stores.redis.opening import promise_of
from outlast.stores.redis.safe import wait_of
from outlast.stores.redis.shelf import RedisShelf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.stores.redis.store import RedisStore

pytestmark = pytest.mark.needs("redis")
PROCESS, POWER, REPLICA = Durability.PROCESS, Durability.POWER, Durability.REPLICA
FILE, ONE, BOTH = Wish(file=True), Wish(replicas=1), Wish(file=True, replicas=1)
EVERYSEC = {"aof_enabled": "1", "appendfsync": "everysec", "waitaof": "1", "run_id": "r"}
ALWAYS = EVERYSEC | {"appendfsync": "always"}
FOLLOWED = {"connected_slaves": "1"}
SIX = {"waitaof": "0"}


@pytest.mark.parametrize(
    ("facts", "wish", "promised", "waits"),
    [
        (ALWAYS, FILE, POWER, ""),
        (EVERYSEC, Wish(), PROCESS, ""),
        (EVERYSEC, FILE, POWER, "WAITAOF 0"),
        (EVERYSEC | SIX, FILE, PROCESS, ""),
        (EVERYSEC | {"appendfsync": "no"}, FILE, PROCESS, "WAITAOF 0"),
        (EVERYSEC | {"no-appendfsync-on-rewrite": "yes"}, FILE, PROCESS, "WAITAOF 0"),
        (EVERYSEC | {"aof_enabled": "0"}, FILE, Durability.MEMORY, ""),
        (EVERYSEC | FOLLOWED, ONE, PROCESS, "WAITAOF 1"),
        (EVERYSEC | FOLLOWED, BOTH, REPLICA, "WAITAOF 1"),
        (ALWAYS | FOLLOWED, ONE, REPLICA, "WAITAOF 1"),
        (ALWAYS | FOLLOWED | SIX, ONE, REPLICA, "WAIT 1"),
        (ALWAYS, ONE, POWER, "WAITAOF 1"),
    ],
)
def test_what_is_promised_and_what_is_waited_for(
    facts: dict[str, str], wish: Wish, promised: Durability, waits: str
) -> None:
    found, why = promise_of(facts, wish)
    assert found is promised
    assert why or found in (POWER, REPLICA)
    wait = wait_of(facts, wish)
    said = f"{'WAITAOF' if wait.synced else 'WAIT'} {wait.replicas}" if wait is not None else ""
    assert said == waits


def test_what_the_url_says() -> None:
    found = read("redis://host/0?ack=waitaof&replicas=2")
    assert found.wish == Wish(file=True, replicas=2)
    assert found.shown == "redis://host/0?ack=waitaof&replicas=2"
    for wrong in ("ack=always", "replicas=some", "replicas=-1", "replicas=1000"):
        with pytest.raises(ConfigurationError, match=wrong):
            connect(f"redis://host/0?{wrong}")


@pytest.fixture
def pair() -> Iterator[tuple[RedisServer, RedisServer]]:
    """A server and its replica, both of which sync each write."""
    at_once = {"repl-diskless-sync-delay": "0"}
    master, replica = (RedisServer(appendfsync="always", **at_once) for _ in range(2))
    try:
        master.start()
        replica.start()
        replica.say("REPLICAOF", "127.0.0.1", str(master.port))
        until(lambda: b"state=online" in master.say("INFO", "replication"), 60.0, "it follows")
        yield master, replica
    finally:
        master.remove()
        replica.remove()


@pytest.fixture
def lazy() -> Iterator[RedisServer]:
    """Syncs its file once a second, and can say when."""
    server = RedisServer(appendfsync="everysec")
    server.start()
    try:
        if not can_say(server):
            pytest.skip("no WAITAOF to rely on (Redis 7.2, not Valkey); scripts/in-debian has one")
        yield server
    finally:
        server.remove()


def can_say(server: RedisServer) -> bool:
    """Whether it has a WAITAOF that may be relied on."""
    found = server.say("COMMAND", "INFO", "WAITAOF").lower()
    return b"waitaof" in found and b"valkey_version" not in server.say("INFO", "server")


def stop(server: RedisServer) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)


def go_on(server: RedisServer) -> None:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGCONT)


async def test_without_the_replicas_that_are_waited_for_nothing_is_accepted() -> None:
    server = RedisServer(appendfsync="always")
    server.start()
    try:
        with pytest.raises(StoreUnavailable, match="0 are connected"):
            await connect(server.url(query="replicas=1")).open()
        with pytest.raises(DurabilityError, match="replicas=1"):
            await connect(server.url(query="durability=replica")).open()
    finally:
        server.remove()


async def test_what_a_replica_has_is_there_when_the_server_is_gone(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = pair
    async with opened(master.url(query="replicas=1&durability=replica")) as store:
        assert store.durability is REPLICA
        jobs = [job() for _ in range(50)]
        await asyncio.gather(*(store.add([each]) for each in jobs))
        claims = await take(store, 10)
        assert list(await store.settle([done(claim) for claim in claims])) == []
        master.kill()
        replica.say("REPLICAOF", "NO", "ONE")
    async with opened(replica.url()) as store:
        found = await store.get([each.id for each in jobs])
        assert sum(each is not None for each in found) == 50
        assert (await store.depth("default")).done == 10


async def test_a_fence_grows_when_a_replica_takes_over_that_lacks_the_last_claim(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    """Though the clock of its host is behind."""
    master, replica = pair
    ahead, behind = FakeClock(), FakeClock()
    ahead.advance(3000.0)
    async with opened(master.url(query="replicas=1"), clock=ahead) as store:
        await store.add([job()])
        replica.say("REPLICAOF", "NO", "ONE")
        fences = [claim.fence for claim in await take(store)]
    async with opened(replica.url(), clock=behind) as store:
        fences += [claim.fence for claim in await take(store)]
    assert len(fences) == 2, "it was claimed on both"
    assert fences == sorted(fences)
    assert fences[0] < fences[1] < 2**53


async def test_nothing_is_acknowledged_that_no_replica_has(
    pair: tuple[RedisServer, RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, replica = pair
    async with opened(master.url(query="replicas=1&durability=replica")) as store:
        await store.add([job(), job()])
        stop(replica)
        waiting = asyncio.ensure_future(store.add([job()]))
        # It is stored, and claims and looks are not held up; but nobody is told that it is safe.
        async with asyncio.timeout(60):
            while (await store.depth("default")).ready < 3:
                pass
        claims = await take(store, 1)
        assert not waiting.done()
        go_on(replica)
        async with asyncio.timeout(60):
            [added] = await waiting
        assert added.created
        stop(replica)
        monkeypatch.setattr(safe, "PATIENCE", 1.5)
        late = job()
        with pytest.raises(EnqueueUncertain, match="1 of its replicas") as uncertain:
            await store.add([late])
        assert uncertain.value.ids == (late.id,)
        with pytest.raises(StoreUnavailable, match="may or may not"):
            await store.settle([done(claims[0])])
        go_on(replica)
        monkeypatch.undo()
        async with asyncio.timeout(60):
            assert [each.created for each in await store.add([late])] == [False]


async def test_no_more_connections_and_no_more_that_block_than_the_docs_say(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    master, replica = pair

    def count(name: str) -> int:
        return int(master.say("INFO", "clients").split(f"{name}:".encode())[1].split(b"\r")[0])

    before = count("connected_clients")
    for query, connections, blocked in (("", 2, 0), ("replicas=1&durability=replica", 3, 1)):
        async with opened(master.url(query=query)) as store:
            waiters = [asyncio.ensure_future(store.wait([f"q{n}"], 1e6)) for n in range(20)]
            if blocked:
                stop(replica)
            adds = [asyncio.ensure_future(store.add([job()])) for _ in range(20)]
            found: list[int] = []
            async with asyncio.timeout(60):
                while (
                    len(found) < 50
                    or max(found) < blocked
                    or count("connected_clients") < before + connections
                ):
                    found.append(count("blocked_clients"))
                    await asyncio.sleep(0)
            assert max(found) == blocked
            assert count("connected_clients") == before + connections
            go_on(replica)
            async with asyncio.timeout(60):
                await asyncio.gather(*adds)
            for waiter in waiters:
                waiter.cancel()
        async with asyncio.timeout(60):
            while count("connected_clients") > before:
                await asyncio.sleep(0)


async def test_a_line_that_breaks_while_it_is_waited(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    """What was done and not yet safe is done again where that changes nothing."""
    master, replica = pair
    async with opened(master.url(query="replicas=1&durability=replica")) as store:
        stop(replica)
        waiting = [asyncio.ensure_future(store.add([job(keep=keep)])) for keep in (60, 0)]
        async with asyncio.timeout(60):
            while (await store.depth("default")).ready < 2:
                pass
        master.say("CLIENT", "KILL", "TYPE", "normal")
        async with asyncio.timeout(60):
            with pytest.raises(EnqueueUncertain):
                await waiting[1]
        go_on(replica)
        async with asyncio.timeout(60):
            assert [each.created for each in await waiting[0]] == [True]


async def test_closing_waits_until_it_is_safe(pair: tuple[RedisServer, RedisServer]) -> None:
    master, replica = pair
    store = connect(master.url(query="replicas=1&durability=replica"))
    await store.open()
    stop(replica)
    waiting = asyncio.ensure_future(store.add([job()]))
    async with asyncio.timeout(60):
        while (await store.depth("default")).ready < 1:
            pass
    closing = asyncio.ensure_future(store.close())
    await asyncio.wait([closing], timeout=0.2)
    assert not closing.done()
    assert not waiting.done()
    go_on(replica)
    async with asyncio.timeout(60):
        await closing
        assert [each.created for each in await waiting] == [True]


async def test_waiting_for_the_file_is_refused_where_the_server_cannot_say_when() -> None:
    """It must not be taken for done: Redis 7.0 has no WAITAOF, and Valkey's is not relied on."""
    server = shared(ConfiguredRedis, "everysec")
    if can_say(server):
        pytest.skip("this server can say when it has synced")
    url = server.url(query="ack=waitaof")
    with pytest.raises(DurabilityError, match=r"ack=waitaof needs Redis 7\.2 or later"):
        await connect(url).open()
    report = await examine(url)
    [tried] = [finding for finding in report.findings if finding.id == "RD3"]
    assert (tried.severity, report.accepted, report.exit_code) == (Severity.WARNING, PROCESS, 1)
    async with opened(f"{url}&durability=process") as store:
        assert store.durability is PROCESS
        assert [each.created for each in await store.add([job()])] == [True]


async def test_what_a_shelf_keeps_is_waited_for(pair: tuple[RedisServer, RedisServer]) -> None:
    master, replica = pair
    async with opened(master.url(query="replicas=1&durability=replica")) as store:
        shelf = RedisShelf(cast("RedisStore", store))
        stop(replica)
        waiting = asyncio.ensure_future(asyncio.to_thread(shelf.put, {"key": b"value"}))
        async with asyncio.timeout(60):
            while await asyncio.to_thread(shelf.get, ["key"]) != [b"value"]:
                pass
        assert not waiting.done()
        go_on(replica)
        async with asyncio.timeout(60):
            await waiting


async def test_power_on_a_server_that_syncs_once_a_second(lazy: RedisServer) -> None:
    def waited() -> bool:
        return b"cmdstat_waitaof" in lazy.say("INFO", "commandstats")

    with pytest.raises(DurabilityError, match="or ack=waitaof in the URL"):
        await connect(lazy.url()).open()
    async with opened(lazy.url(query="ack=waitaof")) as store:
        assert store.durability is POWER
        assert list(await take(store)) == []
        assert (await store.depth("default")).live == 0
        assert not waited()
        async with asyncio.timeout(60):
            added = await asyncio.gather(*(store.add([job()]) for _ in range(100)))
        assert all(each.created for [each] in added)
        assert waited()
        claims = await take(store)
        async with asyncio.timeout(60):
            assert list(await store.settle([done(claim) for claim in claims])) == []
