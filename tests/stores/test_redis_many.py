"""However much comes at once on Redis: no call fails on it, and none does more than its bound."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes import FakeClock
from tests.stores.test_redis import job, opened, take
from tests.stores.test_redis import server as server
from tests.stores.test_redis import shared as shared

from outlast.job import Death, done
from outlast.stores.redis.claims import claim_args
from outlast.stores.redis.op import Op
from outlast.stores.redis.upkeep import recover_worker

if TYPE_CHECKING:
    from tests.conformance.steps import FullStore
    from tests.servers import RedisServer

pytestmark = pytest.mark.needs("redis")

MANY = 8200
"""More than Lua can give a function, which is about 8,000."""
FLOOD = 4000
TASKS = [f"t{n}" for n in range(FLOOD // 1000)]
PIECE = 1000
"""What base.lua calls STEPS."""
EACH = 7
"""Commands that one job may take on its way: three to six were counted."""
CLAIM: Op[Any] = Op(
    "claim", claim_args(["default"], TASKS, 10, 60.0, "w", False, b"t", False), list
)


async def commands(server: RedisServer, op: Op[Any], store: Any) -> tuple[Any, int]:
    """What one call answers, and how many commands its script gave."""
    server.say("CONFIG", "RESETSTAT")
    answer = await store._do(op)
    stats = server.say("INFO", "commandstats").decode()
    return answer, sum(int(calls) for calls in re.findall(r":calls=(\d+)", stats))


async def fill(store: FullStore, many: int, **fields: Any) -> None:
    for first in range(0, many, PIECE):
        jobs = [job(task=TASKS[n // PIECE], **fields) for n in range(first, first + PIECE)]
        await store.add(jobs)


async def test_thousands_in_one_call(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        jobs = [job(keep=1e-3) for _ in range(MANY)]
        ids = [each.id for each in jobs]
        assert all(added.created for added in await store.add(jobs))
        assert None not in await store.get(ids)
        claims = await take(store, MANY)
        assert len(claims) == MANY
        assert list(await store.renew(claims, 60)) == []
        assert await store.recover_worker("w", Death(started=frozenset())) == MANY
        claims = await take(store, MANY)
        assert [claim.job.attempt for claim in claims] == [1] * MANY
        assert list(await store.settle([done(claim) for claim in claims])) == []
        async with asyncio.timeout(60):
            while sum(each is not None for each in await store.get(ids)):
                await store.prune(MANY)


@pytest.mark.parametrize("how", ["claim", "idle"])
async def test_what_falls_due_at_once_is_passed_on_in_pieces(server: RedisServer, how: str) -> None:
    clock = FakeClock()
    async with opened(server.url(), clock=clock) as store:
        await fill(store, FLOOD, delay=60)
        clock.advance(61)
        op = CLAIM if how == "claim" else Op("idle", [0, "default"], list)
        answer, many = await commands(server, op, store)
        assert answer[0] == 1
        assert PIECE < many < PIECE * EACH
        claims: list[Any] = []
        while found := await store.claim(["default"], TASKS, 1000, 60.0, "v"):
            claims += found
        assert len(claims) == FLOOD - (10 if how == "claim" else 0)


async def test_what_a_dead_worker_held_comes_back_in_pieces(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        await fill(store, FLOOD)
        assert len(await store.claim(["default"], TASKS, FLOOD, 60.0, "w")) == FLOOD
        answer, many = await commands(server, recover_worker("w", Death()), store)
        assert answer == (PIECE, True)
        assert PIECE < many < PIECE * EACH
        assert await store.recover_worker("w", Death()) == FLOOD - PIECE
        assert (await store.depth("default")).ready == FLOOD


async def test_leases_and_lives_that_end_at_once_are_taken_in_pieces(server: RedisServer) -> None:
    clock = FakeClock()
    async with opened(server.url(), clock=clock) as store:
        await fill(store, FLOOD, ttl=120)
        assert len(await store.claim(["default"], TASKS, FLOOD // 2, 60.0, "w")) == FLOOD // 2
        clock.advance(61)
        for name in ("recover", "prune"):
            run = server.say("INFO", "server").decode().split("run_id:")[1].split("\r")[0]
            op: Op[Any] = Op(name, [500, run] if name == "recover" else [500], lambda raw: raw)
            answer, many = await commands(server, op, store)
            assert answer == ([500, 0] if name == "recover" else 500)
            assert many < 500 * EACH
            clock.advance(60)
        answer, many = await commands(server, CLAIM, store)
        assert len(answer) == 1
        assert many < 2 * PIECE * EACH
