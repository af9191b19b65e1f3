"""How often the Redis store asks the server, for what, and by whose clock."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace
from redis.exceptions import RedisError
from tests.stores.test_redis import job, opened, take
from tests.stores.test_redis import own as own
from tests.stores.test_redis import server as server
from tests.stores.test_redis import shared as shared

from outlast.clock import SystemClock
from outlast.errors import EnqueueUncertain, JobNotFound, StoreClosed, StoreUnavailable
from outlast.job import Claim, Death, Failure, Progress, Status, dead, done, give_back, retry
from outlast.stores import connect
from outlast.stores.redis import engine
from outlast.stores.redis.address import dial, hang_up, read, send
from outlast.stores.redis.op import Op
from outlast.stores.redis.scripts import texts

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.servers import RedisServer

    from outlast.job import Job

pytestmark = pytest.mark.needs("redis")


def asked(server: RedisServer) -> Counter[str]:
    """Commands since the last time; those of scripts are among them."""
    found = server.say("INFO", "commandstats").decode()
    server.say("CONFIG", "RESETSTAT")
    return Counter({name: int(n) for name, n in re.findall(r"cmdstat_(\S+?):calls=(\d+)", found)})


def connections(server: RedisServer) -> int:
    return int(server.say("INFO", "stats").split(b"total_connections_received:")[1].split(b"\r")[0])


async def test_one_call_an_operation_and_batch(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        jobs = [job() for _ in range(100)]
        ids = [each.id for each in jobs]

        async def calls(work: Awaitable[object]) -> int:
            asked(server)
            await work
            return asked(server)["evalsha"]

        assert await calls(store.add(jobs)) == 1
        assert await calls(store.get(ids)) == 1
        claims = await take(store, 100)
        assert await calls(store.renew(claims, 60.0)) == 1
        assert await calls(store.recover_worker("w", Death(started=frozenset()))) == 1
        assert await calls(take(store, 60)) == 1
        assert await calls(store.cancel(ids)) == 1
        assert await calls(store.revive(ids)) == 1
        claims = await take(store, 100)
        assert await calls(store.settle([done(claim) for claim in claims])) == 1
        for work in (store.depth("default"), store.lines(), store.prune(10), store.recover(10)):
            assert await calls(work) == 1


async def test_scripts_are_loaded_once(server: RedisServer) -> None:
    server.say("SCRIPT", "FLUSH")
    asked(server)
    for _ in range(3):
        async with opened(server.url()) as store:
            await store.add([job()])
    assert asked(server)["script|load"] == len(texts())


def test_no_script_looks_through_all_keys() -> None:
    for text in texts().values():
        assert not re.search(r"""['"](KEYS|SCAN|SORT|FLUSH\w*|RANDOMKEY)['"]""", text)


async def test_what_cannot_be_written_down_spoils_no_other_call(server: RedisServer) -> None:
    async with opened(server.url()) as store, asyncio.timeout(60):
        jobs = [job() for _ in range(50)]
        await store.add(jobs)
        first, *claims = await take(store)
        half = dead(first, Failure(kind="error", message="\ud800"))
        calls: list[Any] = [store.settle([done(claim)]) for claim in claims]
        calls[25:25] = [store.settle([half]), cast("Any", store).emit("\ud800", b"", 1.0)]
        answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        wrong = [answer for answer in answers if isinstance(answer, Exception)]
        assert [type(error) for error in wrong] == [UnicodeEncodeError] * 2
        depth = await store.depth("default")
        assert (depth.running, depth.done) == (1, 49)


async def test_half_a_character_names_nothing(server: RedisServer) -> None:
    async with opened(server.url()) as store, asyncio.timeout(60):
        await store.add([job(key="k")])
        half = "\udcff"
        assert list(await store.get([half])) == [None]
        assert list(await store.cancel([half])) == ["missing"]
        assert list(await store.revive([half])) == [False]
        assert list(await store.find(key=half)) == []
        assert list(await store.find(queue=half)) == []
        assert len(await store.find(after=half)) == 1, "all ids come before it"
        with pytest.raises(JobNotFound):
            await store.finished([half], 0)
        with pytest.raises(JobNotFound):
            await store.purge(half, [Status.DONE])


async def test_a_call_handed_over_while_the_store_closes_is_answered(server: RedisServer) -> None:
    store: Any = connect(server.url())
    await store.open()

    class Late(Op[None]):
        """Handed over when it was looked at, and before it is in the line, all is closed."""

        __slots__ = ()

        @property
        def since(self) -> float:
            return 0.0

        @since.setter
        def since(self, _: float) -> None:
            if self.reply is not None:
                closing = threading.Thread(target=store.close_now)
                closing.start()
                closing.join()

    answer = await asyncio.to_thread(store._hand_over, Late("idle", [0, "default"]))
    with pytest.raises(StoreClosed):
        answer.result(60)


async def test_a_call_that_breaks_each_connection_is_told(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that is larger than the server reads. Others go on beside it."""
    own.say("CONFIG", "SET", "client-query-buffer-limit", "1mb")
    async with opened(own.url()) as store, opened(own.url()) as other, asyncio.timeout(60):
        monkeypatch.setattr(engine, "PATIENCE", 0.5)
        adding = asyncio.ensure_future(store.add([job(payload=b"x" * 3_000_000)]))
        answered = 0
        while not adding.done():
            # On a busy machine one of these may lose its patience, too.
            with contextlib.suppress(StoreUnavailable):
                await store.depth("default")
                answered += 1
        with pytest.raises(EnqueueUncertain, match="adding the same"):
            await adding
        assert answered
        monkeypatch.undo()
        await store.add([job()])
        assert (await other.depth("default")).ready == 1


async def test_a_mistake_of_ours_while_connecting_leaves_nobody_waiting(
    own: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(own.url()) as store, asyncio.timeout(60):

        async def mistaken(_: object) -> None:
            raise ValueError("a mistake")

        with monkeypatch.context() as patched:
            patched.setattr(engine, "PATIENCE", 0.1)
            patched.setattr(cast("Any", store)._engine, "_check", mistaken)
            own.say("CLIENT", "KILL", "TYPE", "normal")
            with pytest.raises((StoreUnavailable, EnqueueUncertain), match="a mistake"):
                await store.add([job()])
        assert "can't connect" in caplog.text
        assert [added.created for added in await store.add([job()])] == [True]


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "an item": {"task": None},
    "another task": {"task": "t", "queue": "q"},
    "headers": {"headers": {"a": "b"}},
    "large": {"payload": b"x" * 5000},
    "for ever": {"keep": None, "max_crashes": None},
    "not kept": {"keep": 0},
    "urgent": {"priority": 7, "rank": b"a\0b"},
    "late": {"delay": 1e-9},
    "soon over": {"ttl": 1000.0},
    "in a lane": {"lane": "l"},
    "with a key": {"key": "k", "digest": b"d"},
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_what_is_claimed_and_settled_is_what_is_stored(
    server: RedisServer, shape: str
) -> None:
    """For what is usual there are shorter ways; all must end at the same place."""
    failure = Failure(kind="error", message="no")
    befores = ("nothing", give_back, partial(retry, delay=0.0, failure=failure), "progress")
    async with opened(server.url()) as store, asyncio.timeout(60):
        for before, result in zip(befores, (None, b"", b'"r"', b"1"), strict=True):
            fields = {"max_attempts": 5, "keep": 86400.0} | SHAPES[shape]
            if "key" in fields:
                fields["key"] = str(before)
            each = job(**fields)
            await store.add([each])

            async def claim(each: Job = each) -> Claim:
                while not (found := await store.claim([each.queue], [each.task], 1, 60.0, "w")):
                    pass
                assert list(await store.get([each.id])) == [found[0].job]
                return found[0]

            held = await claim()
            if callable(before):
                assert list(await store.settle([before(held)])) == []
                held = await claim()
            elif before == "progress":
                note = Progress(id=each.id, value=0.5)
                assert list(await store.renew([held], 60.0, [note])) == []
            [running] = await store.get([each.id])
            assert running is not None
            other = Claim(held.job, bytes(16))
            assert [lost.claim for lost in await store.settle([done(other)])] == [other]
            assert list(await store.settle([done(held, result)])) == []
            assert [lost.claim for lost in await store.settle([done(held)])] == [held]
            [ended] = await store.get([each.id])
            if each.keep == 0:
                assert ended is None
                continue
            assert ended is not None
            assert ended.finished_at is not None
            assert ended == replace(
                running, status=Status.DONE, finished_at=ended.finished_at, result=result,
                failure=None,
            )  # fmt: skip
        depth = await store.depth(SHAPES[shape].get("queue", "default"))
        keep = SHAPES[shape].get("keep", 1)
        assert (depth.live, depth.done) == (0, 0 if keep == 0 else 4)
        assert server.say("ZCARD", "{outlast:default}z") == (b":4\r\n" if keep else b":0\r\n")
        for key in ("e", "ww"):
            assert server.say("EXISTS", "{outlast:default}" + key) == b":0\r\n"


class Wrong(SystemClock):
    """A machine's clock that goes a day wrong."""

    now = staticmethod(lambda: time.time() + 86400.0)
    monotonic = staticmethod(lambda: time.monotonic() + 86400.0)


async def test_due_times_and_leases_go_by_the_clock_of_the_server(server: RedisServer) -> None:
    async with opened(server.url(), clock=Wrong()) as ahead, opened(server.url()) as store:
        later, soon = job(delay=3600.0), job(ttl=3600.0)
        await store.add([later, soon])
        [claim] = await take(ahead)
        assert claim.job.id == soon.id
        assert await ahead.recover(10) == 0
        assert await ahead.prune(10) == 0
        assert claim.job.started_at is not None
        assert abs(claim.job.started_at - float(server.say("TIME").split(b"\r\n")[2])) < 3600


async def test_a_lost_connection_takes_no_more(server: RedisServer) -> None:
    """Else the driver connects anew by itself, maybe to a server that promises less."""
    connection = await dial(read(server.url()))
    try:
        await send(connection, [b"*1\r\n$4\r\nPING\r\n"])
        assert await connection.read_response(disable_decoding=True) == b"PONG"
        server.say("CLIENT", "KILL", "TYPE", "normal")
        with pytest.raises(RedisError):
            await connection.read_response(disable_decoding=True, disconnect_on_error=False)

        async def send_on() -> None:
            while True:
                with contextlib.suppress(RedisError):  # once: that is how it is found to be lost
                    await send(connection, [b"*1\r\n$4\r\nPING\r\n"])
                await asyncio.sleep(0)

        before = connections(server)
        with pytest.raises(ConnectionResetError, match="was lost"):
            await asyncio.wait_for(send_on(), 60)
        assert connections(server) == before + 1, "the one that counts them"
    finally:
        await hang_up(connection)
