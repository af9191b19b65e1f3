"""However much comes at once on Redis: no call fails on it, and none does more than its bound."""

from __future__ import annotations

import asyncio
import re
from random import Random
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.fakes import FakeClock
from tests.stores.proxy import proxied
from tests.stores.test_redis import job, opened, take
from tests.stores.test_redis import server as server
from tests.stores.test_redis import shared as shared

from outlast.job import Death, Status, Step, done, give_back
from outlast.store import WorkerInfo
from outlast.stores.redis.claims import Claiming, claim_args
from outlast.stores.redis.op import MORE, Op
from outlast.stores.redis.shelf import RedisShelf
from outlast.stores.redis.upkeep import prune, recover_worker

if TYPE_CHECKING:
    from tests.conformance.steps import FullStore
    from tests.servers import RedisServer

    from outlast.job import Claim
    from outlast.stores.redis.op import Arg
    from outlast.stores.redis.store import RedisStore

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
    "claim", claim_args(["default"], TASKS, 10, 60.0, "w", False, b"t", "", ""), list
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


async def test_thousands_in_several_lines_come_in_order(server: RedisServer) -> None:
    """However far a call reads ahead in each of them; and none comes twice."""
    chance = Random(7)
    async with opened(server.url()) as store:
        jobs = [
            job(
                task=chance.choice(TASKS),
                priority=chance.choice((0, 0, 5)),
                delay=chance.choice((None, 1e-9)),
            )
            for _ in range(1500)
        ]
        await store.add(jobs)
        inline = [each for each in jobs if each.delay is None]
        found: list[str] = []
        async with asyncio.timeout(60):
            while len(found) < len(jobs):
                for many in (1, 300, 7, 129, 500):
                    claims = await store.claim(["default"], TASKS, many, 60.0, "w")
                    found += [claim.job.id for claim in claims]
        assert sorted(found) == sorted(each.id for each in jobs)
        plain = {each.id for each in inline}
        inline.sort(key=lambda each: -each.priority)
        assert [id_ for id_ in found if id_ in plain] == [each.id for each in inline]


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
        assert len(await store.claim(["default"], TASKS, 500, 60.0, "w")) == 500
        clock.advance(61)
        for name in ("recover", "prune"):
            run = server.say("INFO", "server").decode().split("run_id:")[1].split("\r")[0]
            op: Op[Any] = Op(name, [500, run] if name == "recover" else [500], lambda raw: raw)
            answer, many = await commands(server, op, store)
            assert answer == ([500, 0] if name == "recover" else 500)
            assert many < 500 * EACH
            clock.advance(60)
        answer, many = await commands(server, CLAIM, store)
        assert answer == [1]
        # A piece of those that have expired beforehand, and one of those that it then meets.
        assert 2 * PIECE < many < 2 * PIECE * EACH
        assert (await store.depth("default")).live == FLOOD - 500 - 2 * PIECE - 10


@pytest.mark.parametrize("many", [127, 128, 129, 256])
async def test_the_end_of_a_line_is_its_end(server: RedisServer, many: int) -> None:
    """Also where a piece that was read ahead ends there."""
    async with opened(server.url()) as store:
        await store.add([job(task="t0") for _ in range(many)])
        claims = await store.claim(["default"], ["t0"], 1000, 60.0, "w")
        assert len({claim.job.id for claim in claims}) == len(claims) == many


async def test_leases_of_another_run_are_prolonged_in_pieces(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        await fill(store, FLOOD)
        assert len(await store.claim(["default"], TASKS, FLOOD, 60.0, "w")) == FLOOD
        server.say("HSET", "{outlast:default}m", "run", "another")
        run = server.say("INFO", "server").decode().split("run_id:")[1].split("\r")[0]
        op: Op[Any] = Op("recover", [500, run], list)
        for _ in range(FLOOD // PIECE):
            answer, many = await commands(server, op, store)
            assert answer == [0, 1]
            assert PIECE < many < PIECE + 20
        assert (await commands(server, op, store))[0] == [0, 1]
        assert (await commands(server, op, store))[0] == [0, 0], "that was all"
        assert server.say("HEXISTS", "{outlast:default}m", "long") == b":0\r\n"
        server.say("HSET", "{outlast:default}m", "run", "one more")
        assert await asyncio.wait_for(store.recover(500), 60) == 0


async def test_a_queue_for_each_customer_is_looked_at_in_pieces(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        for first in range(0, FLOOD, PIECE):
            await store.add([job(queue=f"q{n}") for n in range(first, first + PIECE)])
        answer, many = await commands(server, Op("look", ["lines", "0"], list), store)
        assert answer[0] != b"0"
        assert many < 2 * EACH * PIECE
        found = {line.queue: line.depth.ready for line in await store.lines()}
        assert found == {f"q{n}": 1 for n in range(FLOOD)}


async def test_who_looks_through_all_jobs_does_so_in_pieces(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        await fill(store, FLOOD)
        args: list[Arg] = ["find", "+", 100, "x", "", "", "", "", ""]
        answer, many = await commands(server, Op("scan", args, list), store)
        assert answer[1:] == [0]
        assert answer[0] != b""
        assert 2 * PIECE < many < 2 * PIECE + 20
        assert list(await store.find(status=[Status.DEAD])) == []
        assert len(await store.find(status=[Status.QUEUED], limit=FLOOD)) == FLOOD


async def test_thousands_of_workers_that_are_gone_are_forgotten_in_pieces(
    server: RedisServer,
) -> None:
    clock = FakeClock()
    async with opened(server.url(), clock=clock) as store:
        infos = [WorkerInfo(id=f"w{n}", host="h", pid=n, queues=(), tasks=()) for n in range(1500)]
        await asyncio.gather(*(store.beat(info) for info in infos))
        clock.advance(3601)
        answer, many = await commands(server, prune(500), store)
        assert answer == 0
        assert many < 2 * PIECE + 20
        assert server.say("ZCARD", "{outlast:default}v") == b":500\r\n"
        await store.prune(500)
        assert not exists(server, "v")
        assert not exists(server, "u")


async def with_steps(store: Any, many: int, **fields: Any) -> Claim:
    """A job that has taken so many steps, and waits at each tenth of them."""
    await store.add([job(**fields)])
    [claim] = await take(store)
    steps = [
        Step(name=f"n{n}", delay=1e6, event="bell") if n % 10 else Step(name=f"n{n}", result=b"x")
        for n in range(many)
    ]
    for first in range(0, many, 500):
        took = (store.remember(claim, step) for step in steps[first : first + 500])
        assert all(await asyncio.gather(*took))
    return cast("Claim", claim)


def exists(server: RedisServer, key: str) -> bool:
    return server.say("EXISTS", "{outlast:default}" + key) == b":1\r\n"


@pytest.mark.parametrize("keep", [0, 1e-3])
async def test_thousands_of_steps_of_a_job_are_read_and_forgotten_in_pieces(
    server: RedisServer, keep: float
) -> None:
    async with opened(server.url()) as store:
        stepping = cast("Any", store)
        claim = await with_steps(store, 3000, keep=keep)
        recall: Op[Any] = Op("steps", ["recall", claim.job.id, "0"], list)
        answer, _ = await commands(server, recall, store)
        assert 2 * PIECE <= len(answer) < 2 * 2 * PIECE
        assert answer[1] != b"0"
        assert {step.name for step in await stepping.recall(claim)} == {
            f"n{n}" for n in range(3000)
        }
        assert {step.name for step in stepping.recall_now(claim)} == {f"n{n}" for n in range(3000)}
        lost, many = await commands(server, stepping._settle_op([done(claim)]), store)
        assert (list(lost), exists(server, "j" + claim.job.id)) == ([], keep > 0)
        assert many < PIECE
        pieces: list[int] = []
        async with asyncio.timeout(60):
            while exists(server, "j" + claim.job.id) or exists(server, "D") or not pieces:
                found, many = await commands(server, prune(500), store)
                assert found <= 500
                assert many < 500 * EACH
                pieces.append(found)
        assert len(pieces) > 3000 // 500 - 1
        assert not exists(server, "cbell")
        assert await store.prune(1000) == 0
        assert claim.job.id.encode() not in server.say("KEYS", "*")


async def test_steps_of_several_jobs_that_were_put_aside_are_forgotten_by_one_prune(
    server: RedisServer,
) -> None:
    """One call forgets those of the first; of the others it only notes that they are to go."""
    async with opened(server.url()) as store:
        claims = [await with_steps(store, 600, keep=0) for _ in range(3)]
        settle = cast("Any", store)._settle_op([done(claim) for claim in claims])
        lost, many = await commands(server, settle, store)
        assert (list(lost), many < PIECE) == ([], True)
        assert server.say("SCARD", "{outlast:default}D") == b":2\r\n"
        assert await store.prune(10_000) == 1200
        assert not exists(server, "D")
        assert not exists(server, "cbell")
        assert all(claim.job.id.encode() not in server.say("KEYS", "*") for claim in claims)


async def test_what_leaves_with_a_move_is_forgotten_in_pieces(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        claim = await with_steps(store, 3000)
        assert await store.recover_worker("w", Death()) == 1
        op: Op[Any] = Op("moving", ["discard", 500], tuple)
        answer, many = await commands(server, op, store)
        assert answer == (1, 0)
        assert many < PIECE
        answer, many = await commands(server, op, store)
        assert answer == (0, 1)
        assert many < 500 * EACH
        assert await cast("Any", store).discard(500) == 0
        assert not exists(server, "D")
        assert not exists(server, "cbell")
        assert not exists(server, "d" + claim.job.id)


async def test_a_claim_whose_answer_was_lost_is_looked_for_in_pieces(server: RedisServer) -> None:
    async with proxied(server.port) as line, opened(server.url(port=line.port)) as store:
        await fill(store, FLOOD)
        held = await store.claim(["default"], TASKS, FLOOD - 100, 60.0, "the-worker")
        assert len(held) == FLOOD - 100
        line.cut_at(b"the-worker")
        claims = await store.claim(["default"], TASKS, 60, 60.0, "the-worker")
        assert line.was_cut
        assert len(claims) == 60
        assert [claim.job.attempt for claim in claims] == [1] * 60
        assert (await store.depth("default")).running == FLOOD - 40
        calls = server.say("INFO", "commandstats").decode().split("cmdstat_evalsha:calls=")[1]
        assert list(await store.settle([done(claim) for claim in claims])) == []
        assert int(calls.split(",")[0]) > FLOOD // PIECE
        args = claim_args(["default"], TASKS, 60, 60.0, "the-worker", False, b"other", "0", "")
        answer, many = await commands(server, Op("claim", args, list), store)
        assert answer[0] not in (0, 1, b"0")
        assert PIECE < many < PIECE * 2
        assert (await store.depth("default")).ready == 40, "nothing is claimed on the way"


async def test_a_member_shown_in_two_pieces_is_one_claim(server: RedisServer) -> None:
    """So does a set that shrinks or grows between two looks."""
    async with opened(server.url()) as store:
        await store.add([job(task="t0"), job(task="t0")])
        _, *found = await cast("Any", store)._do(CLAIM)
        claiming = Claiming(10, lambda: "run", lambda: "")
        assert claiming.parse([b"17", *found[:3]]) is MORE
        assert claiming.parse([b"23", *found[:3]]) is MORE
        claims = claiming.parse([0, *found])
        assert [claim.job.id.encode() for claim in claims] == found[::3]


async def test_no_lane_is_left_behind_when_thousands_expire_at_once(server: RedisServer) -> None:
    """More than a call looks at beforehand, and then the one that holds the lane."""
    clock = FakeClock()
    async with opened(server.url(), clock=clock) as store:
        await store.add([job(lane="l", ttl=120)])
        [claim] = await take(store)
        assert list(await store.settle([give_back(claim)])) == []
        await store.add([job(lane="l"), *(job(ttl=60) for _ in range(PIECE))])
        clock.advance(121)
        args = claim_args(["default"], [None], 10, 60.0, "w", False, b"t", "", "")
        answer = await cast("Any", store)._do(Op("claim", args, list))
        assert answer == [1], "there is more"
        [claim] = await take(store)
        assert claim.job.lane == "l"


async def test_a_shelf_is_read_in_pieces(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        shelf = RedisShelf(cast("RedisStore", store))

        def look() -> tuple[dict[str, bytes], dict[str, bytes]]:
            for first in range(0, 3500, 500):
                shelf.put({f"a:{n:04}": b"%d" % n for n in range(first, first + 500)})
            shelf.put({f"a:{n:04}": b"" for n in range(1000, 1600)}, ttl=1e-9)
            shelf.put({"a": b"", "b:": b""})
            return shelf.starting("a:"), shelf.starting("c")

        found, nothing = await asyncio.to_thread(look)
        assert list(found) == [f"a:{n:04}" for n in range(3500) if not 1000 <= n < 1600]
        assert (found["a:3499"], nothing) == (b"3499", {})
        op: Op[Any] = Op("shelf", ["starting", "[a:", "(a;"], list)
        answer, many = await commands(server, op, store)
        assert (answer[0], len(answer)) == (b"a:0999", 1 + 2 * PIECE)
        assert PIECE <= many < PIECE + 10
