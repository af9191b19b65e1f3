"""Steps and events on Redis: many who wait, lost answers, restarts, and what is left behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.stores.proxy import proxied
from tests.stores.test_redis import job, opened, take
from tests.stores.test_redis import server as server
from tests.stores.test_redis import shared as shared

from outlast.job import Step, done, give_back
from outlast.stores.redis.op import Op

if TYPE_CHECKING:
    from tests.servers import RedisServer

pytestmark = pytest.mark.needs("redis")

LONG = 1e6


async def asleep(store: Any, many: int, event: str = "bell") -> None:
    """So many jobs that wait for an event."""
    for _ in range(0, many, 500):
        await store.add([job() for _ in range(500)])
        claims = await take(store, 500)
        naps = (store.remember(each, Step(name="nap", delay=LONG, event=event)) for each in claims)
        assert all(await asyncio.gather(*naps))
        await store.settle([give_back(each, LONG, event=event) for each in claims])


async def test_an_event_wakes_thousands_in_pieces(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        await asleep(store, 2500)
        assert (await store.depth("default")).delayed == 2500
        assert await cast("Any", store).emit("bell", b"", 600)
        assert (await store.depth("default")).ready == 2500


async def test_those_whom_a_dying_sender_left_asleep_are_woken_by_the_upkeep(
    server: RedisServer,
) -> None:
    async with opened(server.url()) as store:
        await asleep(store, 2500)
        token = b"t" * 16
        op: Op[Any] = Op("steps", ["emit", "bell", token, "600.0", b""], lambda raw: raw)
        assert await cast("Any", store)._do(op) == [1, 1]
        assert (await store.depth("default")).ready == 1000
        assert await store.prune(10) == 0
        assert await store.prune(10) == 0
        assert (await store.depth("default")).ready == 2500


async def test_calls_whose_answer_was_lost_are_repeated(server: RedisServer) -> None:
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        steps = cast("Any", store)
        await store.add([job()])
        [claim] = await take(store)
        line.cut_at(b"step-one")
        assert await steps.remember(claim, Step(name="step-one", result=b"x"))
        assert line.was_cut
        line.cut_at(b"the-bell")
        assert await steps.emit("the-bell", b"1", 600), "the first one, although it was sent twice"
        assert line.was_cut
        assert not await steps.emit("the-bell", b"2", 600)
        assert await steps.event("the-bell") == b"1"


async def test_nothing_is_lost_when_the_server_is_killed(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        steps = cast("Any", store)
        await asleep(store, 500)
        await store.add([job()])
        [claim] = await take(store)
        for n in range(50):
            assert await steps.remember(claim, Step(name=f"n{n}", result=b"%d" % n))
        server.kill()
        await asyncio.to_thread(server.start)
        found = {step.name: step.result for step in await steps.recall(claim)}
        assert found == {f"n{n}": b"%d" % n for n in range(50)}
        assert await steps.emit("bell", b"", 600)
        server.kill()
        await asyncio.to_thread(server.start)
        assert await steps.event("bell") == b""
        assert (await store.depth("default")).ready == 500


async def test_jobs_and_events_leave_nothing(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        steps = cast("Any", store)

        async def life() -> int:
            await store.add([job(keep=n % 2 * 1e-3) for n in range(20)])
            claims = await take(store)
            for n, each in enumerate(claims):
                await steps.remember(each, Step(name="one", result=b"x"))
                await steps.remember(each, Step(name="two", delay=LONG, event=f"e{n % 3}"))
            await steps.remember(claims[0], Step(name="two", result=b"x"))
            await steps.emit("e0", b"payload", 1e-3)
            await steps.emit("nobody", b"payload", 1e-3)
            await store.settle([done(each, b"result") for each in claims])
            async with asyncio.timeout(60):
                while await steps.event("nobody") or (await store.depth("default")).done:
                    await store.prune(1000)
                while await store.prune(1000):
                    pass
            return int(server.say("DBSIZE")[1:])

        first = await life()
        assert [await life() for _ in range(3)] == [first] * 3
