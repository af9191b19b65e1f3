"""What is special to Redis: settings, restarts, broken lines, clusters, and what is left behind."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.proof.patience import until
from tests.servers import RedisServer
from tests.stores.proxy import proxied

from outlast.chance import SystemChance
from outlast.errors import (
    ConfigurationError,
    DurabilityError,
    EnqueueUncertain,
    StoreFull,
    StoreUnavailable,
)
from outlast.job import Death, Job, Status, done, give_back
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.redis import engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.conformance.steps import FullStore

pytestmark = pytest.mark.needs("redis")
SECRET = "S3cr3t!pw"
_chance = SystemChance()


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    server = RedisServer(appendfsync="always")
    server.start()
    yield server
    server.remove()


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    """As it was started, and empty."""
    shared.say("CONFIG", "SET", "appendfsync", "always")
    shared.say("CONFIG", "SET", "maxmemory-policy", "noeviction")
    shared.say("FLUSHALL")
    return shared


@pytest.fixture
def own() -> Iterator[RedisServer]:
    """A server that the test may do anything to."""
    server = RedisServer(appendfsync="always")
    server.start()
    yield server
    server.remove()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[FullStore]:
    store = cast("FullStore", connect(url, **options))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def job(**fields: Any) -> Job:
    return Job(id=_chance.uuid7(), **fields)


async def take(store: FullStore, limit: int = 100) -> list[Any]:
    return list(await store.claim(["default"], [None], limit, 60.0, "w"))


# -- settings


async def test_power_where_each_write_is_synced(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        assert store.durability is Durability.POWER
        assert cast("Any", store).library.startswith(("Redis ", "Valkey "))


async def test_a_replica_class_is_not_promised(server: RedisServer) -> None:
    with pytest.raises(DurabilityError, match="replica"):
        await connect(server.url(query="durability=replica")).open()


async def test_a_replica_is_refused(own: RedisServer, server: RedisServer) -> None:
    own.say("REPLICAOF", "127.0.0.1", str(server.port))
    with pytest.raises(StoreUnavailable, match="replica"):
        await connect(own.url()).open()


async def test_settings_that_may_not_be_read_promise_no_more_than_a_process(
    own: RedisServer,
) -> None:
    own.say("ACL", "SETUSER", "default", "-config")
    with pytest.raises(DurabilityError, match="CONFIG GET"):
        await connect(own.url()).open()
    async with opened(own.url(query="durability=process")) as store:
        await store.add([job()])


async def test_nobody_there(server: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match="can't reach"):
        await connect("redis://127.0.0.1:1/0").open()


async def test_a_missing_namespace_is_not_made(server: RedisServer) -> None:
    with pytest.raises(StoreUnavailable, match="--create"):
        await connect(server.url(), create=False).open()
    assert server.say("DBSIZE") == b":0\r\n"
    async with opened(server.url()) as store:
        await store.add([job()])
    size = server.say("DBSIZE")
    async with opened(server.url(), namespace="other", create=False) as store:
        assert (await store.depth("default")).live == 0
        assert list(await store.namespaces()) == ["default"]
    assert server.say("DBSIZE") == size


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("redis", "hiredis"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ConfigurationError, match=r"outlast\[redis\]"):
            connect("redis://host")
        monkeypatch.undo()


async def test_no_password_is_shown(own: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    own.say("CONFIG", "SET", "requirepass", SECRET)
    url = own.url().replace("//", f"//:{SECRET}@")
    async with opened(url) as store:
        await store.add([job()])
        shown = [store.url, repr(store), repr(vars(store))]
    for wrong in (own.url(), url.replace(SECRET, SECRET + "x")):
        with pytest.raises(ConfigurationError) as refused:
            await connect(wrong).open()
        shown += [str(refused.value), repr(refused.value)]
    own.kill()
    with pytest.raises(StoreUnavailable) as gone:
        await connect(url).open()
    shown += [str(gone.value), repr(gone.value), caplog.text]
    assert not [text for text in shown if SECRET in text or "S3cr3t" in text]


async def test_a_user_with_no_more_rights_than_the_docs_name(own: RedisServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    rights = re.findall(r"`([~&+][^`]+)`", page.replace("\n", " "))
    assert len(rights) == 4, rights
    own.say("ACL", "SETUSER", "jobs", "on", f">{SECRET}", *" ".join(rights).split())
    async with opened(own.url().replace("//", f"//jobs:{SECRET}@")) as store:
        waiter = asyncio.ensure_future(store.wait(["default"], 1e6))
        await store.add([job(lane="l", key="k"), job(delay=60)])
        async with asyncio.timeout(60):
            await waiter
        claims = await take(store)
        assert list(await store.settle([done(claim) for claim in claims])) == []
        assert await store.purge("default", [Status.QUEUED]) == 1
        assert list(await store.namespaces()) == ["default"]
    own.say("ACL", "SETUSER", "jobs", "-evalsha")
    with pytest.raises(ConfigurationError, match="rights") as refused:
        async with opened(own.url().replace("//", f"//jobs:{SECRET}@")) as store:
            await store.add([job()])
    assert SECRET not in str(refused.value)


async def test_a_socket(own: RedisServer) -> None:
    own.kill()
    own.settings["unixsocket"] = str(own.folder / "s")
    own.start()
    async with opened(f"unix://{own.folder}/s?db=3") as store:
        await store.add([job()])
    async with opened(store.url) as store:
        assert len(await take(store)) == 1


async def test_a_server_without_memory_accepts_nothing_but_lets_go(own: RedisServer) -> None:
    async with opened(own.url()) as store:
        jobs = [job(), job(max_crashes=1), job(), job(keep=0)]
        await store.add(jobs)
        own.say("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreFull, match="maxmemory"):
            await store.add([job()])
        claims = await take(store)
        assert list(await store.renew(claims, 60)) == []
        assert list(await store.settle([done(claims[0], b"1"), give_back(claims[2])])) == []
        assert await store.recover_worker("w", Death(alone=True)) == 2
        [again] = await take(store, 1)
        with pytest.raises(StoreFull):
            await store.settle([done(again, then=(job(),))])
        depth = await store.depth("default")
        assert (depth.done, depth.dead, depth.running) == (1, 1, 1)
        own.say("CONFIG", "SET", "maxmemory", "0")
        await store.add([job()])


# -- restarts


async def test_nothing_acknowledged_is_lost_when_the_server_is_killed(own: RedisServer) -> None:
    acknowledged: list[str] = []
    ended: list[str] = []

    async def produce(store: FullStore) -> None:
        while True:
            each = job(payload=b"x" * 100)
            await store.add([each])
            acknowledged.append(each.id)

    async def consume(store: FullStore) -> None:
        while True:
            claims = await take(store, 10)
            if not await store.settle([done(claim) for claim in claims]):
                ended.extend(claim.job.id for claim in claims)

    for _ in range(3):
        async with opened(own.url()) as store:
            work = [produce(store) for _ in range(8)] + [consume(store) for _ in range(2)]
            tasks = [asyncio.ensure_future(each) for each in work]
            before = len(ended)
            while len(ended) < before + 100:
                await asyncio.wait(tasks, timeout=0.01)
            own.kill()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            own.start()
        async with opened(own.url()) as store:
            found = [each for each in await store.get(acknowledged) if each is not None]
            assert len(found) == len(acknowledged) >= 100
            over = [each for each in await store.get(ended) if each is not None]
            assert [each.status for each in over] == [Status.DONE] * len(ended)


async def test_calls_wait_for_a_server_that_comes_back(own: RedisServer) -> None:
    async with opened(own.url()) as store:
        await store.add([job()])
        assert await take(store)
        waiter = asyncio.ensure_future(store.wait(["default"], 1e6))
        own.kill()
        calls = [asyncio.ensure_future(store.add([job()])) for _ in range(20)]
        await asyncio.to_thread(own.start)
        async with asyncio.timeout(60):
            assert [added.created for [added] in await asyncio.gather(*calls)] == [True] * 20
            await waiter
            while len(await take(store)) < 20:
                await store.wait(["default"], 1.0)


async def test_calls_do_not_wait_for_ever(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(own.url()) as store:
        monkeypatch.setattr(engine, "PATIENCE", 0.3)
        own.kill()
        with pytest.raises((StoreUnavailable, EnqueueUncertain), match=r"can't reach|broke"):
            await store.add([job()])
        with pytest.raises(StoreUnavailable):
            await store.depth("default")


async def test_a_lease_that_ran_out_while_the_server_was_away_is_nobodys_crash(
    own: RedisServer,
) -> None:
    async with opened(own.url()) as store:
        await store.add([job()])
        [claim] = await store.claim(["default"], [None], 1, 0.2, "w")
        own.kill()
        own.start()
        assert await store.recover(10) == 0
        async with asyncio.timeout(60):
            while not await store.recover(10):
                pass
        found = (await store.get([claim.job.id]))[0]
        assert found is not None
        assert (found.status, found.crashes) == (Status.QUEUED, 0)


async def test_scripts_that_were_flushed_come_back(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        for _ in range(5):
            server.say("SCRIPT", "FLUSH")
            added = await asyncio.gather(*(store.add([job()]) for _ in range(10)))
            assert all(each.created for [each] in added)
        assert len(await take(store)) == 50


async def test_killed_connections_are_made_again(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        for _ in range(5):
            server.say("CLIENT", "KILL", "TYPE", "normal")
            server.say("CLIENT", "KILL", "TYPE", "pubsub")
            added = await asyncio.gather(*(store.add([job()]) for _ in range(10)))
            assert all(each.created for [each] in added)


# -- lost answers


async def test_an_add_whose_answer_was_lost_is_repeated(server: RedisServer) -> None:
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        each = job(key="k")
        line.cut_at(each.id.encode())
        assert [added.created for added in await store.add([each])] == [True]
        assert line.was_cut
        assert [claim.job.id for claim in await take(store)] == [each.id]


@pytest.mark.parametrize("keep", [0, 0.5])
async def test_what_is_not_kept_is_not_added_twice(server: RedisServer, keep: float) -> None:
    """It may have been done and forgotten meanwhile, so its caller decides."""
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        each = job(keep=keep)
        line.cut_at(each.id.encode())
        with pytest.raises(EnqueueUncertain) as uncertain:
            await store.add([each])
        assert uncertain.value.ids == (each.id,)
        assert [added.created for added in await store.add([each])] == [False]


async def test_claims_whose_answer_was_lost_are_claimed(server: RedisServer) -> None:
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        await store.add([job(), job(), job()])
        line.cut_at(b"the-worker")
        claims = await store.claim(["default"], [None], 2, 60.0, "the-worker")
        assert line.was_cut
        assert [claim.job.attempt for claim in claims] == [1, 1]
        assert (await store.depth("default")).running == 2
        assert list(await store.settle([done(claim) for claim in claims])) == []


@pytest.mark.parametrize("verdict", [done, give_back])
@pytest.mark.parametrize("keep", [0, 60])
async def test_a_settlement_whose_answer_was_lost_is_not_lost(
    server: RedisServer, verdict: Any, keep: float
) -> None:
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        await store.add([job(keep=keep)])
        [claim] = await take(store)
        line.cut_at(claim.receipt.hex().encode())
        assert list(await store.settle([verdict(claim)])) == []
        assert line.was_cut
        assert len(await store.settle([verdict(claim)])) == 1


async def test_a_cancel_whose_answer_was_lost_says_so(server: RedisServer) -> None:
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        each = job()
        await store.add([each])
        line.cut_at(each.id.encode())
        with pytest.raises(StoreUnavailable, match="may or may not"):
            await store.cancel([each.id])
        assert list(await store.cancel([each.id])) == ["ended"]


async def test_cancelled_calls_leave_no_answer_to_others(server: RedisServer) -> None:
    """C29: the next caller on the same connection got somebody else's answer."""
    chance = Random(3)
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        known = [job(payload=b"%d" % n) for n in range(100)]
        await store.add(known)
        line.delay = 0.01
        batches = []
        for n in range(200):
            batches.append([job(), job()])
            call = store.get([known[n % 100].id]) if n % 2 else store.add(batches[-1])
            task = asyncio.ensure_future(call)
            await asyncio.wait((task,), timeout=chance.random() * 0.04)
            task.cancel()
        line.delay = 0.0
        for n, each in enumerate(known):
            [found] = await store.get([each.id])
            assert found is not None
            assert found.payload == b"%d" % n
        for batch in batches:
            stored = await store.get([each.id for each in batch])
            assert len({each is None for each in stored}) == 1, "half a batch"


async def test_a_silent_line_is_given_up(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        monkeypatch.setattr(engine, "SILENCE", 0.2)
        line.silent = True
        each = job()
        call = asyncio.ensure_future(store.add([each]))
        await asyncio.to_thread(
            until, lambda: server.say("EXISTS", key_of(each)) == b":1\r\n", 60, "it"
        )
        line.silent = False
        async with asyncio.timeout(60):
            assert [added.created for added in await call] == [True]


async def test_a_frozen_server_holds_nobody_up_for_ever(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel goes on taking its connections, and no answer ever comes."""
    async with opened(own.url()) as store:
        for name, seconds in (("SILENCE", 0.3), ("ANSWERS_WITHIN", 0.3), ("PATIENCE", 0.3)):
            monkeypatch.setattr(engine, name, seconds)
        assert own.process is not None
        own.process.send_signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(60):
                with pytest.raises((StoreUnavailable, EnqueueUncertain), match="no answer"):
                    await store.add([job()])
        finally:
            own.process.send_signal(signal.SIGCONT)
        monkeypatch.undo()
        async with asyncio.timeout(60):
            assert [added.created for added in await store.add([job()])] == [True]


def key_of(job: Job) -> str:
    return "{outlast:default}j" + job.id


# -- what is left behind


async def test_finished_jobs_leave_nothing(server: RedisServer) -> None:
    async with opened(server.url()) as store:

        async def life() -> int:
            odd = {"lane": "l", "ttl": 600, "key_queued": False, "priority": 3, "rank": b"r"}
            jobs = [job(keep=n % 2 * 1e-3, key=f"k{n}", keep_key=1e-3, **odd) for n in range(30)]
            await store.add([*jobs, *(job(keep=1e-3) for _ in range(30))])
            await store.add([job(delay=600, keep=1e-3)])
            while claims := await take(store):
                await store.settle([done(claim, b"result") for claim in claims])
            waiting = await store.find(status=[Status.QUEUED])
            await store.cancel([each.id for each in waiting])
            async with asyncio.timeout(60):
                while (await store.depth("default")).done + await store.prune(1000):
                    pass
            return int(server.say("DBSIZE")[1:])

        first = await life()
        assert [await life() for _ in range(3)] == [first] * 3


async def test_a_queued_job_takes_less_than_600_bytes(server: RedisServer) -> None:
    def used(key: str) -> int:
        return int(server.say("MEMORY", "USAGE", "{outlast:default}" + key, "SAMPLES", "0")[1:])

    async with opened(server.url()) as store:
        jobs = [job(task="shop:send", payload=b"x" * 100) for _ in range(5000)]
        await store.add(jobs)
        shared = used("qdefault/shop:send") + used("t")
        assert used("j" + jobs[0].id) + shared / 5000 < 600
