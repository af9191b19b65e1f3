"""Every job of one store moved into another, each way round: all that was stored is there."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, cast

import asyncpg
import pytest
from msgspec.structs import replace
from tests.conformance.conftest import Place
from tests.conformance.steps import OOPS, add, job, take
from tests.servers import PostgresServer, RedisServer, shared

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import MoveRefused, StoreMoved
from outlast.job import DAY, Death, Progress, Status, Step, dead, done, give_back, retry
from outlast.movable import Arrival, Crate, Departure, Movable
from outlast.moving import left_behind, move
from outlast.store import Feature, Stepping, WorkerInfo, offers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from tests.conformance.steps import FullStore

    from outlast.job import Claim, Job
    from outlast.moving import Moved
    from outlast.store import Store

PAIRS = (
    *("memory-memory", "memory-sqlite", "sqlite-memory", "sqlite-sqlite"),
    *("sqlite-postgresql", "postgresql-sqlite", "postgresql-postgresql"),
    *("sqlite-redis", "redis-sqlite", "redis-redis", "postgresql-redis", "redis-postgresql"),
)
NEEDS = {"postgresql": "servers", "redis": "redis"}
_names = itertools.count(1)


class Pair:
    """Two places with one clock."""

    def __init__(self, source: Place, target: Place) -> None:
        self.source, self.target = source, target
        self.clock = target.clock = source.clock

    async def move(self, source: Store, target: Store, **options: Any) -> Moved:
        return await move(source, target, clock=SystemClock(), bite=3, **options)


def _param(names: str) -> Any:
    marks = {NEEDS[kind] for kind in names.split("-") if kind in NEEDS}
    return pytest.param(names, marks=[pytest.mark.needs(mark) for mark in marks])


@pytest.fixture(params=map(_param, PAIRS))
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Pair]:
    places: list[Place] = []
    for n, kind in enumerate(request.param.split("-")):
        url = f"memory://moving-{next(_names)}"
        if kind == "sqlite":
            url = f"sqlite:///{tmp_path}/{n}.db"
        if kind == "postgresql":
            url = shared(PostgresServer).url(schema=f"moving{next(_names)}")
        if kind == "redis":
            redis = shared(RedisServer)
            if not any(place.kind == kind for place in places):
                redis.empty()
            url = f"{redis.url()}/{n}"
        places.append(Place(kind, url))
    yield Pair(*places)
    for place in places:
        await place.close()
        if place.kind == "postgresql":
            await _forget_schema(place.url)


async def _forget_schema(url: str) -> None:
    connection = await asyncpg.connect(url.partition("?")[0])
    try:
        await connection.execute(f"DROP SCHEMA IF EXISTS {url.partition('=')[2]} CASCADE")
    finally:
        await connection.close()


async def stocked(store: FullStore, clock: Any) -> list[str]:
    """A store with jobs in every state a job can be left in; their ids in order."""
    now = clock.now()
    steps = Feature.STEPS in store.features
    await add(
        store,
        job("ended", task="t", key="ended", digest=b"1", keep_key=900.0, headers={"a": "b"}),
        job("short", task="t", key="short", digest=b"2", keep=0.0),
        job("dead", task="t", max_attempts=1, keep=None),
        job("again", task="t", lane="lane", max_attempts=9, payload=b"\xff\x00", codec="raw"),
        job("poison", task="t"),
        job("sleeps", task="t", max_crashes=None),
        job("waits", task="t"),
    )
    claims = {claim.job.id: claim for claim in await take(store, queues=["default"], tasks=["t"])}
    if steps:
        await _do_steps(cast("Stepping", store), claims)
    await store.renew(list(claims.values()), 60, [Progress(id="again", value=0.5, text="half")])
    await store.settle(
        [
            done(claims["ended"], b'"result"'),
            done(claims["short"], b"1"),
            dead(claims["dead"], OOPS),
            retry(claims["again"], 0, OOPS),
            give_back(claims["sleeps"], 500.0),
            give_back(claims["waits"], 700.0, event="door"),
        ]
    )
    await store.recover_worker("w1", Death(signal=9, alone=True))
    await add(
        store,
        *[job(f"item-{n}", queue="items", payload=b"%d" % n) for n in range(5)],
        job("ranked", queue="items", rank=b"\x01\x00", priority=-3),
        job("later", task="t", run_at=now + 100.0, expires_at=now + 9000.0, timeout=7.5),
        job("keyed", task="t", key="live", digest=b"3", keep_key=5.0, max_attempts=4),
        job("lane-2", task="t", lane="lane"),
        job("paused", queue="closed", task="t"),
        job("gone", task="t"),
    )
    await store.cancel(["gone"])
    await store.pause("closed")
    order = (
        *("ended dead again poison sleeps waits item-0 item-1 item-2 item-3 item-4 ranked".split()),
        *("later keyed lane-2 paused gone".split()),
    )
    return list(order)


async def _do_steps(store: Stepping, claims: dict[str, Claim]) -> None:
    await store.remember(claims["again"], Step(name="charge", digest=b"d", result=b"paid"))
    await store.remember(claims["sleeps"], Step(name="nap", digest=b"n", delay=500.0))
    await store.remember(claims["waits"], Step(name="wait", digest=b"w", event="door"))
    assert await store.emit("sent", b"news", 600.0)


def shown(jobs: Sequence[Job | None]) -> list[Job]:
    """As they are to be found again: who ran it last is no concern of the next store."""
    return [replace(each, worker=None) for each in jobs if each is not None]


async def test_all_that_was_stored_comes_along(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    order = await stocked(source, pair.clock)
    before = shown(await source.get(order))
    depths = {(line.queue, line.task): (line.depth, line.paused) for line in await source.lines()}
    moved = await pair.move(source, target)
    assert moved.stage == "done"
    assert (moved.jobs, moved.total, moved.deleted) == (len(order), len(order), len(order))
    after = shown(await target.get(order))
    assert after == before
    assert [each.id for each in reversed(await target.find(limit=100))] == order
    found = {(line.queue, line.task): (line.depth, line.paused) for line in await target.lines()}
    assert {name: depth for name, depth in found.items() if depth[0].live} == {
        name: depth for name, depth in depths.items() if depth[0].live
    }
    assert await left_behind(source) == 0
    assert await source.find(limit=100) == []
    mark = await cast("Movable", source).departure()
    assert mark is not None
    assert mark.stage == "moved"
    assert await cast("Movable", target).arrived(mark.id) is None, "it is over, and forgotten"


async def test_keys_hold_and_are_remembered_as_long(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await stocked(source, pair.clock)
    await pair.move(source, target)

    async def holder(key: str, digest: bytes) -> str:
        [added] = await target.add([job(f"new-{key}", task="t", key=key, digest=digest)])
        return added.id

    assert await holder("live", b"3") == "keyed"
    assert await holder("ended", b"1") == "ended"
    assert await holder("short", b"2") == "short", "the job is gone, its key is not"
    pair.clock.advance(901.0)
    assert await holder("ended", b"1") == "new-ended"
    assert await holder("live", b"3") == "keyed"
    pair.clock.advance(DAY)
    assert await holder("short", b"2") == "new-short"


async def test_steps_and_events_come_along(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    if Feature.STEPS not in source.features & target.features:
        pytest.skip("one of these stores keeps no steps")
    await stocked(source, pair.clock)
    pair.clock.advance(10.0)
    await pair.move(source, target)
    assert offers(target, Stepping)
    claims = {each.job.id: each for each in await take(target, tasks=["t"])}
    assert "waits" not in claims
    found = await target.recall(claims["again"])
    assert [(s.name, s.digest, s.result) for s in found] == [("charge", b"d", b"paid")]
    assert await target.event("sent") == b"news"
    assert not await target.emit("sent", b"other", 1.0)
    assert await target.emit("door", b"open", 60.0)
    [waiter] = await take(target, tasks=["t"])
    assert waiter.job.id == "waits"
    pair.clock.advance(490.0)
    claims = {each.job.id: each for each in await take(target, tasks=["t"])}
    [nap] = await target.recall(claims["sleeps"])
    assert nap.left == pytest.approx(0.0, abs=2.0)


async def test_who_waits_for_what_was_sent_there_goes_on(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    if Feature.STEPS not in source.features & target.features:
        pytest.skip("one of these stores keeps no steps")
    await stocked(source, pair.clock)
    assert await cast("Stepping", target).emit("door", b"open", 60.0)
    await pair.move(source, target)
    assert "waits" in [each.job.id for each in await take(target, tasks=["t"])]


async def test_order_and_lanes_are_kept(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await stocked(source, pair.clock)
    await pair.move(source, target)
    items = [each.job.id for each in await take(target, queues=["items"], tasks=[None])]
    assert items == [*(f"item-{n}" for n in range(5)), "ranked"]
    claims = await take(target, tasks=["t"])
    assert [each.job.id for each in claims if each.job.lane] == ["again"], "it had begun"
    assert await take(target, queues=["closed"], tasks=["t"]) == []
    await target.settle([done(each) for each in claims])
    assert [each.job.id for each in await take(target, tasks=["t"])] == ["lane-2"]


async def test_fences_go_on_growing(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("a", task="t", max_attempts=9))
    before = 0
    for _ in range(3):
        [claim] = await take(source, tasks=["t"])
        await source.settle([retry(claim, 0, OOPS)])
        before = claim.fence
    for _ in range(4):  # more often than a new store has any reason to begin anew
        [claim] = await take(source, tasks=["t"])
        await source.settle([dead(claim, OOPS)])
        await source.revive(["a"])
    [claim] = await take(source, tasks=["t"])
    assert claim.fence > before
    before = claim.fence
    await source.settle([retry(claim, 0, OOPS)])
    await pair.move(source, target)
    [claim] = await take(target, tasks=["t"])
    assert claim.fence > before
    assert claim.job.attempt == 2


async def test_nothing_can_be_added_to_what_was_left(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("a", task="t"), job("b", task="t"))
    await pair.move(source, target)
    with pytest.raises(StoreMoved, match="moved to"):
        await source.add([job("c")])
    with pytest.raises(StoreMoved):
        await source.add([job("c", key="k", task="t"), job("d", priority=3)])
    if offers(source, Stepping):
        with pytest.raises(StoreMoved):
            await source.emit("late", b"", 1.0)
    assert await take(source, tasks=["t"]) == []
    again = await pair.move(source, target)
    assert (again.resumed, again.jobs) == (True, 0)


async def test_and_back_again(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    order = await stocked(source, pair.clock)
    before = shown(await source.get(order))
    await pair.move(source, target)
    await pair.move(target, source)
    assert shown(await source.get(order)) == before
    await add(source, job("new", task="t"))
    with pytest.raises(StoreMoved):
        await target.add([job("c")])


async def test_sealed_nothing_changes_any_more(pair: Pair) -> None:
    source = await pair.source.open()
    await add(source, job("a", task="t"), job("b", task="t"))
    [claim, _] = await take(source, tasks=["t"])
    await source.settle([dead(claim, OOPS)])
    await source.recover_worker("w1", Death())
    out = cast("Movable", source)
    draining = Departure(id="m", to="elsewhere://")
    assert await out.depart(draining, None) == 0
    assert await take(source, tasks=["t"]) == [], "while it drains, claims give nothing"
    await add(source, job("c", task="t"))
    sealed = replace(draining, stage="sealed")
    assert await out.depart(sealed, draining) == 0
    for change in (
        lambda: source.cancel(["b"]),
        lambda: source.revive(["a"]),
        lambda: source.purge("default", [Status.QUEUED]),
        lambda: source.add([job("d")]),
    ):
        with pytest.raises(StoreMoved, match="elsewhere://"):
            await change()
    assert await take(source, tasks=["t"]) == []
    with pytest.raises(StoreMoved):
        await out.depart(draining, None)
    assert not await out.stay(draining)
    assert await out.stay(sealed)
    assert sorted(each.job.id for each in await take(source, tasks=["t"])) == ["b", "c"]


async def test_two_at_once_move_each_job_once(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    ids = await add(source, *[job(f"j-{n:03}", queue="items") for n in range(60)])
    found = await asyncio.gather(
        *(pair.move(source, target, chance=SystemChance()) for _ in range(2)),
        return_exceptions=True,
    )
    assert any(not isinstance(each, BaseException) for each in found), found
    for each in found:
        assert not isinstance(each, BaseException) or isinstance(each, StoreMoved | MoveRefused)
    assert [each.job.id for each in await take(target, queues=["items"], tasks=[None])] == ids


async def test_a_living_worker_is_not_moved_away_from(pair: Pair) -> None:
    pair.clock.step(SystemClock().now() - pair.clock.now())
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("a", task="t"))
    await source.beat(WorkerInfo(id="w", host="h", pid=17))
    with pytest.raises(MoveRefused, match=r"1 worker is alive on .* \(h pid 17\)"):
        await pair.move(source, target)
    assert [each.job.id for each in await take(source, tasks=["t"])] == ["a"]


async def test_what_runs_is_waited_for(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("a", task="t"), job("b", task="t"))
    [claim] = await take(source, 1, tasks=["t"])
    waits = asyncio.Event()
    stages: list[str] = []

    def tell(moved: Moved) -> None:
        stages.append(moved.stage)
        waits.set()

    moving = asyncio.create_task(pair.move(source, target, drain=True, tell=tell))
    await waits.wait()
    assert await take(source, tasks=["t"]) == []
    await source.settle([done(claim, b"1", (job("follows", task="t"),))])
    moved = await moving
    assert (stages[0], moved.jobs) == ("draining", 3)
    assert [each.job.id for each in await take(target, tasks=["t"])] == ["b", "follows"]


async def test_interrupted_while_it_waits_nothing_was_changed(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("a", task="t"), job("b", task="t"))
    await take(source, 1, tasks=["t"])
    waits = asyncio.Event()
    moving = asyncio.create_task(pair.move(source, target, tell=lambda _: waits.set()))
    await waits.wait()
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert [each.job.id for each in await take(source, tasks=["t"])] == ["b"]
    assert await cast("Movable", source).departure() is None


async def test_begun_to_one_place_it_doesnt_go_to_another(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("a", task="t"))
    out = cast("Movable", source)
    await out.depart(Departure(id="m", to="elsewhere://"), None)
    with pytest.raises(MoveRefused, match="on their way to elsewhere:// already"):
        await pair.move(source, target)


async def test_not_into_what_is_being_left(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("a", task="t"))
    await cast("Movable", target).depart(Departure(id="m", to="elsewhere://"), None)
    with pytest.raises(MoveRefused, match="themselves on their way to elsewhere://"):
        await pair.move(source, target)
    assert [each.job.id for each in await take(source, tasks=["t"])] == ["a"]


async def test_not_into_itself(pair: Pair) -> None:
    source, same = await pair.source.open(), await pair.source.open()
    await add(source, job("a", task="t"))
    with pytest.raises(MoveRefused, match="the same store"):
        await pair.move(source, same)
    assert [each.job.id for each in await take(source, tasks=["t"])] == ["a"]


async def test_a_key_that_another_job_took_there_is_told(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, job("old", task="t", key="k", digest=b"1"))
    await add(target, job("new", task="t", key="k", digest=b"1"), job("same", task="t"))
    await add(source, job("same", task="t"))
    moved = await pair.move(source, target)
    assert (moved.keyless, moved.known) == (1, 1)
    assert sorted(each.job.id for each in await take(target, tasks=["t"])) == ["new", "old", "same"]


async def test_a_crate_comes_in_once_whatever_became_of_its_jobs(pair: Pair) -> None:
    source, target = await pair.source.open(), await pair.target.open()
    await add(source, *[job(f"j-{n}", queue="items", keep=0.0) for n in range(2)])
    out, into = cast("Movable", source), cast("Movable", target)
    draining = Departure(id="m", to="elsewhere://")
    await out.depart(draining, None)
    await out.depart(replace(draining, stage="sealed"), draining)
    with pytest.raises(StoreMoved, match="has ended, or was given up"):
        await into.unpack("m", Crate(after="", upto="x"))
    await into.expect("m")
    place, crates = "", []
    while (crate := await out.pack(place, 10)) is not None:
        crates.append(crate)
        assert await into.unpack("m", crate) == Arrival(place=crate.upto)
        place = crate.upto
    claims = await take(target, queues=["items"], tasks=[None])
    await target.settle([done(claim) for claim in claims])
    for crate in crates:
        assert await into.unpack("m", crate) == Arrival(place=place)
    assert await into.arrived("m") == place
    assert await take(target, queues=["items"], tasks=[None]) == []
    await into.unexpect("m")
    assert await into.arrived("m") is None


async def test_new_jobs_come_in_as_followers_do(pair: Pair) -> None:
    target = await pair.target.open()
    into = cast("Movable", target)
    await add(target, job("holder", task="t", key="k", digest=b"1"))
    await into.expect("m")
    fresh = [job("a", task="new"), job("b", task="t", key="k", digest=b"2"), job("c", delay=5.0)]
    assert await into.unpack("m", Crate(after="", upto="x", adds=fresh)) == Arrival(place="x")
    assert await into.unpack("m", Crate(after="", upto="x", adds=fresh)) == Arrival(place="x")
    assert [each.job.id for each in await take(target, tasks=["t", "new"])] == ["holder", "a"]
    assert (await target.depth("default")).delayed == 1
