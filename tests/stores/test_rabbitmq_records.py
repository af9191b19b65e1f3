"""RabbitMQ with records in another store: the hand-over between the two, at every crash point."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, cast

import pytest
from pika.exceptions import ChannelClosedByBroker
from tests.rabbit import channel, consumer_timeout
from tests.servers import PostgresServer, RabbitServer, RedisServer, shared
from tests.stores.children import Child, say

from outlast import Outlast
from outlast.chance import SeededChance
from outlast.doctor import examine
from outlast.errors import ConfigurationError, KeyRepeated, Unsupported
from outlast.job import Claim, Death, Depth, Failure, Job, Status, done, give_back, retry
from outlast.location import pin
from outlast.store import Durability, Feature, Line
from outlast.stores import connect, redact
from outlast.stores.rabbitmq import outbox
from outlast.stores.rabbitmq.bells import Bells
from outlast.stores.rabbitmq.recorded import RecordedStore, _put_back
from outlast.stores.rabbitmq.sweep import Sweep
from outlast.stores.urls import parse, with_records

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

SECRET = "S3cr3t!pw"
OOPS = Failure(kind="error", message="oops")
PLACES = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.needs("servers")),
    pytest.param("redis", marks=pytest.mark.needs("redis")),
]

on_a_broker = pytest.mark.needs("rabbitmq")


@pytest.fixture
def records(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = getattr(request, "param", "sqlite")
    if kind == "postgresql":
        return shared(PostgresServer).url()
    if kind == "redis":
        return shared(RedisServer).url()
    return f"sqlite:///{tmp_path}/records.db"


@asynccontextmanager
async def opened(
    broker: RabbitServer, records: str, namespace: str, *, port: int | None = None
) -> AsyncIterator[Any]:
    url = with_records(broker.url(port=port), records)
    store = connect(url, namespace=namespace, durability=Durability.PROCESS)
    assert isinstance(store, RecordedStore)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def alone(records: str, namespace: str) -> AsyncIterator[Any]:
    """The records by themselves: whatever is done there rings no bell."""
    store = connect(records, namespace=namespace, durability=Durability.PROCESS)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def job(id: str, **fields: Any) -> Job:
    return Job(**{"id": id, "task": "t"} | fields)


async def claim(store: Any, limit: int = 10, lease: float = 15.0) -> Sequence[Claim]:
    return cast("Sequence[Claim]", await store.claim(["default"], ["t"], limit, lease, "w1"))


async def beat() -> None:
    """A moment between two looks for what the other side does."""
    await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=0.02)


async def rung(store: Any, seconds: float = 60.0) -> list[str]:
    """Wait as an idle worker does, without ever looking by itself, until there is a job."""
    async with asyncio.timeout(seconds):
        while True:
            await store.wait(["default"], 3600.0)
            if claims := await claim(store):
                await store.settle([done(each) for each in claims])
                return [each.job.id for each in claims]


async def idle(store: Any, seconds: float = 60.0) -> None:
    """Until its consumers are there, nothing is to be had, and what it rings is heard."""
    async with asyncio.timeout(seconds):
        while True:
            assert not await claim(store)
            engine = store._bells.engine
            asked = engine.intake
            if asked.is_on and not asked._consuming and not asked.out and engine.outbox.takes:
                return
            await beat()


def bells(broker: RabbitServer, namespace: str) -> int | None:
    """How many lie on the broker, for nobody in particular; None as long as there is no queue."""
    try:
        with channel(broker.url()) as raw:
            answer = raw.queue_declare(f"outlast/{namespace}/default/t!bell", passive=True)
            return int(answer.method.message_count)
    except ChannelClosedByBroker as error:
        if error.reply_code != 404:
            raise
        return None


# -- the records do what they can


@on_a_broker
@pytest.mark.parametrize("records", PLACES, indirect=True)
async def test_what_a_broker_alone_cannot_do(
    broker: RabbitServer, records: str, namespace: str
) -> None:
    """Results, keys, a look at a job, cancelling, exact due times: C38's kind and C42's."""
    app = Outlast(broker.url(), records=records, namespace=namespace, durability=Durability.PROCESS)
    started: dict[int, float] = {}

    @app.task(name="t")
    async def double(n: int) -> int:
        started[n] = time.monotonic()
        return 2 * n

    async with app:
        cancelled = await double.using(delay=0.3).enqueue(1)
        assert await cancelled.cancel() == "cancelled"
        again = await double.using(key="k").enqueue(2)
        twins = await asyncio.gather(*(double.using(key="k").enqueue(2) for _ in range(20)))
        assert {twin.id for twin in twins} == {again.id}
        assert not any(twin.created for twin in twins)
        async with app.worker():
            assert await again.result(timeout=60) == 4
            with pytest.raises(KeyRepeated):
                await double.using(key="k", on_repeat="raise").enqueue(2)
            began = time.monotonic()
            late = await double.using(delay=0.5).enqueue(3)
            assert await late.result(timeout=60) == 6
            assert started[3] - began >= 0.5
        assert 1 not in started
        assert await cancelled.status() is Status.CANCELLED


@on_a_broker
async def test_long_after_the_consumer_timeout(
    broker: RabbitServer, records: str, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A message that is held longer than three seconds costs its channel on this broker."""
    app = Outlast(broker.url(), records=records, namespace=namespace)
    starts: list[int] = []

    @app.task(timeout=7200)
    async def long(n: int) -> int:
        starts.append(n)
        await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=6)
        return n

    with consumer_timeout(broker, 3.0):
        async with app.worker(concurrency=6):
            handles = [await long.enqueue(n) for n in range(2)]
            assert [await handle.result(timeout=60) for handle in handles] == [0, 1]
        assert sorted(starts) == [0, 1]
        assert "jobs go back to" not in caplog.text, "a channel was lost"
        # The broker means it: who holds a message is cut off.
        with channel(broker.url()) as raw:
            name = f"outlast/{namespace}/default/held!bell"
            raw.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})
            raw.basic_publish("", name, b"")
            raw.basic_consume(name, lambda *_: None)
            ended: list[Any] = []  # from 4.3 on; before, the channel is closed
            raw.add_on_cancel_callback(ended.append)
            deadline = time.monotonic() + 60
            while raw.is_open and not ended and time.monotonic() < deadline:
                raw.connection.process_data_events(0.2)
            assert raw.is_closed or ended


# -- the hand-over


@on_a_broker
@pytest.mark.parametrize("records", PLACES, indirect=True)
async def test_recorded_and_never_rung(broker: RabbitServer, records: str, namespace: str) -> None:
    """As by one who died in between, and by whatever else makes jobs claimable in the records."""
    async with opened(broker, records, namespace) as store, alone(records, namespace) as other:
        await idle(store)
        await other.add([job("orphan")])
        assert await rung(store) == ["orphan"]
        began = time.monotonic()
        await other.add([job("due", delay=0.5)])
        assert await rung(store) == ["due"]
        assert time.monotonic() - began >= 0.5
        await other.add([job("back")])
        (running,) = await other.claim(["default"], ["t"], 1, 15.0, "gone")
        await other.recover_worker("gone", Death())
        assert await rung(store) == ["back"]
        await other.pause("default")
        await other.add([job("paused")])
        await other.pause("default", False)
        assert await rung(store) == ["paused"]
        assert running.job.id == "back"


@on_a_broker
async def test_messages_that_got_lost(broker: RabbitServer, records: str, namespace: str) -> None:
    async with opened(broker, records, namespace) as producer:
        await producer.add([job(f"{n}") for n in range(5)])
        await producer.add([job("other", task="nobody")])
    with channel(broker.url()) as raw:
        raw.queue_delete(f"outlast/{namespace}/default/t!bell")
    async with opened(broker, records, namespace) as store:
        store._bells.take(["default"], ["t"], 1)  # consumes, and looks into no records
        found: list[str] = []
        while len(found) < 5:
            found += await rung(store)
    assert sorted(found) == [f"{n}" for n in range(5)]


@on_a_broker
async def test_messages_that_come_twice(broker: RabbitServer, records: str, namespace: str) -> None:
    """Each job is claimed once, however many bells there are, and these are used up."""
    async with opened(broker, records, namespace) as store:
        await idle(store)
        await store.add([job("once")])
        for _ in range(3):
            store._bells.ring({("default", "t"): 20})
        (first,) = await settled_claims(store)
        assert first.job.id == "once"
        await store.settle([done(first)])
        async with asyncio.timeout(60):
            while bells(broker, namespace) is None:  # they are rung behind ``add``
                await beat()
            while (
                store._bells._coming or bells(broker, namespace) or store._bells.engine.intake.out
            ):
                await store.wait(["default"], 0.2)
                assert not await claim(store)
        (found,) = await store.get(["once"])
        assert (found.status, found.attempt) == (Status.DONE, 1)


async def settled_claims(store: Any) -> Sequence[Claim]:
    async with asyncio.timeout(60):
        while not (claims := await claim(store)):
            await store.wait(["default"], 3600.0)
    return claims


@on_a_broker
async def test_a_retry_and_what_follows_are_rung(
    broker: RabbitServer, records: str, namespace: str
) -> None:
    async with opened(broker, records, namespace) as store:
        await idle(store)
        await store.add([job("a", max_attempts=3)])
        (first,) = await settled_claims(store)
        await store.settle([retry(first, 0, OOPS)])
        (second,) = await settled_claims(store)
        await store.settle([retry(second, 0.2, OOPS)])
        (third,) = await settled_claims(store)
        assert third.job.attempt == 3
        await store.settle([done(third, None, (job("next"),))])
        assert await rung(store) == ["next"]


# -- crashes at each step


def producer(point: str, url: str, namespace: str) -> None:
    """Adds a job, and is killed."""

    def die(*_: object, **__: object) -> None:
        say(point)
        os.kill(os.getpid(), signal.SIGKILL)

    async def run() -> None:
        from outlast.stores.rabbitmq.outbox import Outbox

        store: Any = connect(url, namespace=namespace, durability=Durability.PROCESS)
        await store.open()
        if point == "recorded":
            cast("Any", Bells).ring_here = die
        elif point == "sent":
            plain = Outbox.send

            def send(self: Outbox, posting: Any) -> None:
                plain(self, posting)
                self.flush()
                die()

            cast("Any", Outbox).send = send
        elif point == "confirmed":
            cast("Any", Bells)._rung = die
        await store.add([job("a")])
        while True:
            await beat()

    asyncio.run(run())


def worker(point: str, url: str, namespace: str) -> None:
    """Claims a job whose bell it has heard, and is killed."""

    def die(*_: object, **__: object) -> None:
        say(point)
        os.kill(os.getpid(), signal.SIGKILL)

    async def run() -> None:
        store: Any = connect(url, namespace=namespace, durability=Durability.PROCESS)
        await store.open()
        await idle(store)
        say("idle")
        await store.wait(["default"], 60.0)
        if point == "heard":
            store.records.claim = die
        elif point == "claimed":
            cast("Any", Bells).heed = die
        claims = await store.claim(["default"], ["t"], 1, 1.0, "doomed")
        while not claims:
            claims = await store.claim(["default"], ["t"], 1, 1.0, "doomed")
        if point == "settled":
            await store.settle([done(claims[0])])
        die()

    asyncio.run(run())


async def doomed(body: Callable[..., None], point: str, **told: str) -> AsyncIterator[None]:
    """A process that is killed at a point; between the two it waits for a job."""
    with Child(body, point=point, **told) as child:
        if body is worker:
            assert await asyncio.to_thread(child.hear) == "idle"
            yield
        assert await asyncio.to_thread(child.hear) == point
        await asyncio.to_thread(child.process.wait, 60)


@on_a_broker
@pytest.mark.parametrize("records", PLACES, indirect=True)
async def test_producers_die(broker: RabbitServer, records: str, namespace: str) -> None:
    url = with_records(broker.url(), records)

    async def die(point: str) -> None:
        mine = f"{namespace}.{point}"
        async for _ in doomed(producer, point, url=url, namespace=mine):
            raise AssertionError("it waits for nothing")
        async with opened(broker, records, mine) as store:
            store._bells.take(["default"], ["t"], 1)  # consumes, and looks into no records
            while not store._bells.listens:
                await beat()  # else the records would tell
            assert await rung(store) == ["a"], point
            await idle(store)
            (found,) = await store.get(["a"])
            assert found.attempt == 1, point

    await asyncio.gather(*map(die, ("recorded", "sent", "confirmed")))


@on_a_broker
@pytest.mark.parametrize("records", PLACES, indirect=True)
async def test_workers_die(broker: RabbitServer, records: str, namespace: str) -> None:
    url = with_records(broker.url(), records)

    async def die(point: str) -> None:
        mine = f"{namespace}.{point}"
        async with opened(broker, records, mine) as store:
            async for _ in doomed(worker, point, url=url, namespace=mine):
                await store.add([job("a", max_crashes=9)])
            if point == "settled":
                await idle(store)
            else:
                await store.settle([done(each) for each in await recovered(store)])
            (found,) = await store.get(["a"])
            assert found.status is Status.DONE, point
            assert found.attempt == (1 if point in ("heard", "settled") else 2), point

    await asyncio.gather(*map(die, ("heard", "claimed", "acknowledged", "settled")))


async def recovered(store: Any) -> Sequence[Claim]:
    async with asyncio.timeout(60):
        while not (claims := await claim(store)):
            await store.recover(10)
            await beat()
    return claims


# -- a broker that is away


@on_a_broker
async def test_a_broker_that_is_away(
    broker: RabbitServer, records: str, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded is accepted, and run: the records tell as long as the broker can't."""
    nobody = 1  # no broker listens there
    async with opened(broker, records, namespace, port=nobody) as store:
        with monkeypatch.context() as patch:
            patch.setattr(outbox, "PATIENCE", 3600.0)
            async with asyncio.timeout(60):  # nobody waits for a broker that is away
                await store.add([job("a")])
        (first,) = await claim(store)
        waits = asyncio.ensure_future(rung(store))
        await store.add([job("b")])
        assert await waits == ["b"]
        await store.settle([done(first)])


@on_a_broker
async def test_a_broker_that_goes_and_comes_back(
    broker: RabbitServer, records: str, namespace: str
) -> None:
    """A wait that has begun goes on with the records; later ones hear bells again."""
    close = (
        '[rabbit_networking:close_connection(P, "test") || P <- rabbit_networking:connections()].'
    )
    async with opened(broker, records, namespace) as store:
        await idle(store)
        waits = asyncio.ensure_future(rung(store))
        await asyncio.to_thread(broker.evaluate, close)
        await store.add([job("meanwhile")])
        assert await waits == ["meanwhile"]
        await idle(store)
        await store.add([job("after")])
        assert await rung(store) == ["after"]


@on_a_broker
async def test_a_broker_that_takes_no_messages(
    broker: RabbitServer, records: str, namespace: str
) -> None:
    async with opened(broker, records, namespace) as store:
        await idle(store)
        broker.evaluate("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).")
        try:
            await store.add([job("a")])
            (claimed,) = await claim(store)  # as each worker does every few seconds
            await store.settle([done(claimed)])
            await store.add([job("b")])
        finally:
            broker.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
        assert await rung(store) == ["b"]


# -- what was there before


@on_a_broker
async def test_jobs_from_before_there_were_records(
    broker: RabbitServer, records: str, namespace: str
) -> None:
    """They are taken into the records, under their ids, when a worker first asks for their line."""
    plain: Any = connect(broker.url(), namespace=namespace)
    await plain.open()
    await plain.add([job("old", payload=b"1"), job("low", priority=-1), job("due", delay=0.3)])
    await plain.close()
    async with opened(broker, records, namespace) as store:
        found: list[str] = []
        await claim(store)
        while len(found) < 3:
            found += await rung(store)
        assert sorted(found) == ["due", "low", "old"]
        (old,) = await store.get(["old"])
        assert (old.payload, old.attempt) == (b"1", 1)


@on_a_broker
async def test_one_sweeps_always(broker: RabbitServer, records: str, namespace: str) -> None:
    """The broker lets one in; when that one ends, another does it."""
    async with opened(broker, records, namespace) as second:
        async with opened(broker, records, namespace) as first:
            await idle(first)
            async with asyncio.timeout(60):
                while not _sweeps(first):
                    await beat()
            await idle(second)
            assert not _sweeps(second)
        async with asyncio.timeout(60):
            while not _sweeps(second):
                await beat()


def _sweeps(store: Any) -> bool:
    return bool(store._bells._sweep.leads)


# -- when it is rung


def test_when_the_sweep_rings() -> None:
    sweep = Sweep(cast("Any", None), cast("Any", None), cast("Any", None), SeededChance(1))
    pair = ("default", "t")

    def asks(now: float, running: int = 0, paused: bool = False, **counts: int) -> bool:
        line = Line(queue="default", task="t", depth=Depth(**counts), paused=paused)
        return sweep._is_time(pair, line, running, now)

    assert not asks(0.0, delayed=2)
    assert asks(1.0, delayed=1, ready=1), "what came due is rung at once"
    assert not asks(1.1, delayed=1, ready=1), "and is given time to be claimed"
    assert asks(1.2, ready=2), "also the next"
    assert not asks(2.0)
    assert not asks(3.0, ready=1), "what was added is being rung"
    assert asks(3.3, ready=1), "or was not"
    assert [n for n in range(4, 40) if asks(float(n), ready=1)] == [5, 7, 11, 19, 27, 35]
    assert not asks(40.0, running=1, ready=1)
    assert asks(41.1, running=1, ready=1), "another line's end may have freed a lane"
    assert not asks(50.0, running=1, ready=1, paused=True)


def test_what_is_rung_by_who_stores_it() -> None:
    now, late = job("now"), job("late", delay=5)
    claimed = Claim(job("a", queue="q"), b"r", 1)
    assert _put_back([done(claimed, None, (now, late, now))]) == {("default", "t"): 2}
    assert _put_back([retry(claimed, 0, OOPS), retry(claimed, 5, OOPS)]) == {("q", "t"): 1}
    assert _put_back([give_back(claimed), give_back(claimed, event="e")]) == {("q", "t"): 1}
    assert _put_back([done(claimed)]) == {}


# -- URLs, texts, the doctor


def test_urls() -> None:
    inner = "postgresql://shop:p%40ss@db/jobs?schema=a&sslmode=require"
    url = with_records("amqp://u:other@host/vhost?consumer_timeout=60", inner)
    address = parse(url)
    assert address.records == inner
    assert dict(address.options) == {"consumer_timeout": "60"}
    assert with_records(url, inner) == url
    assert parse("amqp://host/?records=redis://h:1/0").records == "redis://h:1/0"
    for wrong in (
        "amqp://host/?records=nonsense", "amqp://host/?records=amqp://host",
        "amqp://host/?records=memory://", "amqp://host/?records=redis://h&records=redis://h",
        "amqp://host/?records=",
    ):  # fmt: skip
        with pytest.raises(ConfigurationError):
            parse(wrong)
    with pytest.raises(ConfigurationError, match="its own records"):
        with_records("redis://host", inner)
    with pytest.raises(ConfigurationError, match="disagree"):
        with_records(url, "redis://h")


def test_no_password_is_shown() -> None:
    for inner in (
        f"postgresql://shop:{SECRET}@db/jobs", f"redis://:{SECRET}@h/0?ssl_password={SECRET}x",
    ):  # fmt: skip
        for url in (
            with_records(f"amqp://u:{SECRET}@host/", inner),
            f"amqp://u:{SECRET}@host/?records={inner}",
        ):
            from outlast.cli import secrets

            shown = redact(url)
            assert "S3cr3t" not in shown
            assert "records=" in shown
            assert "S3cr3t" not in repr(parse(url))
            assert "S3cr3t" not in secrets.redact(f"see {url} for it")
            assert any("S3cr3t" in each for each in secrets.passwords(url))
            assert "S3cr3t" not in secrets.redact(f"it is {SECRET}.", secrets.passwords(url))
            assert secrets.has_password(url)
            app = Outlast(url)
            assert "S3cr3t" not in repr(app) + str(app.url)


def test_a_file_of_records_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = Outlast("amqp://host/?consumer_timeout=60", records="sqlite:///jobs.db")
    assert parse(str(app.url)).records == f"sqlite:///{tmp_path}/jobs.db"
    assert parse(str(app.url)).options == {"consumer_timeout": "60"}
    assert pin(str(app.url), None) == app.url


async def test_weaker_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="disagree"):
        connect(f"amqp://host/?durability=power&records=sqlite:///{tmp_path}/x?durability=process")


@on_a_broker
async def test_without_records_the_way_out_is_named(broker: RabbitServer, namespace: str) -> None:
    app = Outlast(broker.url(), namespace=namespace)

    @app.task(name="t")
    async def nothing() -> None:
        """Never run."""

    async with app:
        calls: list[Callable[[], Any]] = [
            lambda: app.store.add([job("a", key="k")]),
            lambda: app.store.add([job("a", lane="l")]),
            lambda: app.store.add([job("a", timeout=1e6)]),
            lambda: app.store.add([job("a")], capacity=1),
            lambda: app.handle("a").status(),
            lambda: app.emit("e"),
            lambda: nothing.using(key="k").enqueue(),
        ]
        for call in calls:
            with pytest.raises(Unsupported, match="records="):
                await call()
        with (
            closing(sqlite3.connect(":memory:")) as connection,
            pytest.raises(Unsupported, match="records="),
        ):
            app.joined(connection).enqueue(nothing.call())
    assert Feature.KEYS not in connect(broker.url()).features


@on_a_broker
async def test_the_doctor_names_both_classes(broker: RabbitServer, tmp_path: Path) -> None:
    records = f"sqlite:///{tmp_path}/records.db?durability=process"
    store: Any = connect(with_records(broker.url(), records))
    await store.open()
    await store.close()
    report = await examine(with_records(broker.url(), records))
    (both,) = [finding for finding in report.findings if finding.id == "RM10"]
    assert "broker: power" in both.read
    assert ": process" in both.read
    assert report.accepted is Durability.PROCESS
    assert {finding.id[:2] for finding in report.findings} == {"RM", "SQ"}
    away = await examine(with_records(broker.url(port=1), records))
    assert away.reached
    assert away.accepted is Durability.PROCESS
    assert away.exit_code == 1
