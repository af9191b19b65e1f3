"""What is special to RabbitMQ: confirms, the ladder of delays, bands, crashes, and broken lines."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import pytest
from pika.adapters.utils.connection_workflow import AMQPConnectorSocketConnectError
from pika.exceptions import (
    AMQPConnectionError,
    ProbableAccessDeniedError,
    ProbableAuthenticationError,
)
from tests.rabbit import (
    channel,
    dead,
    ids,
    job,
    nothing,
    opened,
    take,
    take_all,
    until_lost,
    when_it_is_back,
)
from tests.servers import RabbitServer
from tests.stores.proxy import proxied

from outlast import LifoQueue, PriorityQueue, Queue
from outlast.errors import (
    ConfigurationError,
    DurabilityError,
    EnqueueUncertain,
    StoreUnavailable,
    Unsupported,
)
from outlast.job import Claim, Failure, Lost, done, give_back, retry
from outlast.job import dead as died
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.rabbitmq import outbox
from outlast.stores.rabbitmq.faults import mapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.stores.rabbitmq.store import RabbitStore

pytestmark = pytest.mark.needs("rabbitmq")
SECRET = "S3cr3t!pw"
OOPS = Failure(kind="error", message="oops")


# -- what a job is on a broker


async def test_a_job_comes_back_whole(broker: RabbitServer, namespace: str) -> None:
    full = job(
        "full", queue="mail.out", task="shop.mail:send", payload=bytes(range(256)), codec="raw",
        headers={"trace": "00-ab", "ü": "\N{SNOWMAN}"}, priority=-7, max_attempts=9,
        max_crashes=None, timeout=2.5, keep=None, run_at=time.time() - 5.5,
        expires_at=time.time() + 600,
    )  # fmt: skip
    async with opened(broker, namespace) as store:
        await store.add([full])
        [claim] = await take(store, queue="mail.out", tasks=["shop.mail:send"])
    for field in (
        "id", "queue", "task", "payload", "codec", "headers", "priority", "max_attempts",
        "max_crashes", "timeout", "keep", "run_at", "expires_at",
    ):  # fmt: skip
        assert getattr(claim.job, field) == getattr(full, field), field
    assert (claim.job.attempt, claim.job.worker, claim.fence) == (1, "w1", 1)


async def test_everything_declared_is_a_durable_quorum_queue(
    broker: RabbitServer, namespace: str
) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a"), job("b", priority=3), job("c", delay=0.3)])
        listed = broker.ctl("list_queues", "name", "type", "durable", "arguments", "--silent")
    ours = ("outlast/delay/", f"outlast/{namespace}/")
    lines = [line.split("\t") for line in listed.splitlines() if line.startswith(ours)]
    mine = {line[0]: line for line in lines if line[0].startswith(f"outlast/{namespace}/")}
    assert set(mine) == {
        f"outlast/{namespace}/default/t", f"outlast/{namespace}/default/t!high",
        f"outlast/{namespace}/default!dead",
    }  # fmt: skip
    assert "outlast/delay/01" in {line[0] for line in lines}
    for name, kind, durable, arguments in lines:
        assert (kind, durable) == ("quorum", "true"), name
        if store.library < "RabbitMQ 4":
            assert "x-delivery-limit" not in arguments, "it drops messages on 3.10"
        elif not name.startswith("outlast/delay/"):
            assert '{"x-delivery-limit",-1}' in arguments, "it drops them at the 20th there"
        if not name.endswith("!dead"):
            assert "at-least-once" in arguments, name
            assert "reject-publish" in arguments, name


async def test_what_is_sent_is_persistent(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
    [(found, properties)] = take_all(broker.url(), f"outlast/{namespace}/default/t")
    assert (found.id, properties.delivery_mode, properties.message_id) == ("a", 2, "a")


async def test_names_of_any_length(broker: RabbitServer, namespace: str) -> None:
    queue, tasks = "q" * 128, ["t" * 127 + "1", "t" * 127 + "2"]
    async with opened(broker, namespace) as store:
        await store.add([job(task[-1], queue=queue, task=task) for task in tasks])
        assert ids(await take(store, queue=queue, tasks=tasks[1:])) == ["2"]
        assert ids(await take(store, queue=queue, tasks=tasks[:1])) == ["1"]


async def test_priorities_in_three_bands(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        order = [("1", 0), ("low", -100), ("high", 1), ("2", 0), ("higher", 100), ("lower", -1)]
        await store.add([job(name, priority=priority) for name, priority in order])
        assert await nothing(store, tasks=["other"])
        await store.claim(["default"], ["t"], 0, 15.0, "w1")
        await store.catch_up(["default"], ["t"])
        claims: list[Claim] = []
        while len(claims) < len(order):
            claims += await take(store)
            await store.catch_up(["default"], ["t"])
    assert ids(claims) == ["high", "higher", "1", "2", "low", "lower"]


# -- what it can't do is refused before anything is touched


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"key": "k"}, "records"),
        ({"lane": "l"}, "records"),
        ({"rank": b"r"}, "records"),
        ({"timeout": 1801.0}, "records"),
        ({"delay": 6e8}, "years"),
        ({"run_at": 4e9}, "years"),
    ],
)
async def test_refused(
    broker: RabbitServer, namespace: str, fields: dict[str, Any], why: str
) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("before")])
        with pytest.raises(Unsupported, match=why):
            await store.add([job("a"), job("b", **fields)])
        [before] = await take(store)
        follow = (job("c"), job("d", **fields))
        with pytest.raises(Unsupported, match=why):
            await store.settle([done(before, None, follow)])
        with pytest.raises(Unsupported, match="years"):
            await store.settle([done(before), retry(before, 6e8, OOPS)])
        assert await nothing(store)
        assert list(await store.settle([done(before)])) == []


async def test_calls_that_need_records(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        with pytest.raises(Unsupported, match="records"):
            await store.add([job("a")], capacity=5)
        with pytest.raises(Unsupported, match="records"):
            await store.claim(["default"], ["t"], 1, 15.0, "w", newest=True)
        with pytest.raises(Unsupported, match="records"):
            await store.wait(["default"], 1.0, space=True)


@pytest.mark.parametrize("kind", [Queue, LifoQueue, PriorityQueue])
def test_queues_that_keep_an_order(broker: RabbitServer, kind: Any) -> None:
    with pytest.raises(Unsupported, match="ORDER"):
        kind(name="jobs", url=broker.url())


async def test_the_brokers_timeout_can_be_told(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace, query="consumer_timeout=7200") as store:
        await store.add([job("long", timeout=6840.0), job("any")])
        claims = await take(store, 2)
    assert all(6700.0 < (claim.job.timeout or 0.0) < 6840.0 for claim in claims), claims
    async with opened(broker, f"{namespace}x", query="consumer_timeout=none") as store:
        await store.add([job("long", timeout=1e6), job("any")])
        timeouts = {claim.job.id: claim.job.timeout for claim in await take(store, 2)}
    assert timeouts == {"long": 1e6, "any": None}


# -- delays


async def test_delays_are_the_brokers_and_survive_the_program(
    broker: RabbitServer, namespace: str
) -> None:
    async with opened(broker, namespace) as store:
        began = time.time()
        await store.add([job("soon", delay=0.9), job("later", delay=90 * 86400.0)])
        await store.close()
        await store.open()
        assert ids(await take(store)) == ["soon"]
        late = time.time() - began - 0.9
        assert 0.0 <= late < 30.0
        assert await nothing(store)


async def test_a_delay_takes_the_way_of_its_bits(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        began = time.monotonic()
        await store.add([job("a", delay=0.125 + 0.5)])
        [claim] = await take(store)
        assert time.monotonic() - began >= 0.625
        assert claim.job.run_at is not None
    # By the broker's own account: it waited twice, in just these two.
    async with opened(broker, namespace) as store:
        [claim] = await take(store)
    with channel(broker.url()) as raw:
        raw.queue_purge(f"outlast/{namespace}/default/t")


# -- settling


async def test_a_retry_is_published_before_it_is_acknowledged(
    broker: RabbitServer, namespace: str
) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a", max_attempts=2)])
        [first] = await take(store)
        assert list(await store.settle([retry(first, 0.2, OOPS)])) == []
        assert list(await store.settle([done(first)])) == [Lost(first, "lost")]
        [second] = await take(store)
        assert (second.job.attempt, second.job.failures, second.job.failure) == (2, 1, OOPS)
        assert second.fence > first.fence
        assert list(await store.settle([retry(second, 0.0, OOPS)])) == []
        assert await nothing(store)
        assert (await store.depth("default")).dead == 1
    [buried] = dead(broker.url(), namespace)
    assert (buried.id, buried.failures, buried.failure) == ("a", 2, OOPS)


async def test_what_is_given_back_costs_nothing(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        for _ in range(5):
            [claim] = await take(store)
            assert (claim.job.attempt, claim.job.crashes, claim.job.suspect) == (1, 0, False)
            await store.settle([give_back(claim, started=False)])
        [claim] = await take(store)
        await store.settle([give_back(claim, 0.2)])
        [claim] = await take(store)
        assert (claim.job.attempt, claim.job.failures, claim.job.crashes) == (2, 0, 0)


async def test_what_follows_is_stored_with_it(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        [claim] = await take(store)
        assert list(await store.settle([done(claim, None, (job("b"), job("c", task="u")))])) == []
        assert sorted(ids(await take(store, 2, tasks=["t", "u"]))) == ["b", "c"]


async def test_the_dead_lie_in_a_queue_of_their_own(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a", payload=b"[7]"), job("b")])
        a, b = await take(store, 2)
        await store.settle([died(a, OOPS), done(b)])
        assert (await store.depth("default")).dead == 1
    [found] = dead(broker.url(), namespace)
    assert (found.id, found.payload, found.failure) == ("a", b"[7]", OOPS)


async def test_what_expired_is_not_given_out(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("late", expires_at=time.time() - 1), job("b", ttl=600.0)])
        assert ids(await take(store)) == ["b"]
        assert await nothing(store)
        depth = await store.depth("default")
        assert (depth.ready, depth.running) == (0, 1)


async def test_what_nobody_can_read_is_kept_with_the_dead(
    broker: RabbitServer, namespace: str
) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        with channel(broker.url()) as raw:
            raw.basic_publish("", f"outlast/{namespace}/default/t", b"\xc1 no job")
        assert ids(await take(store)) == ["a"]
        assert await nothing(store)

        async def is_buried() -> bool:
            return (await store.depth("default")).dead == 1

        async with asyncio.timeout(60):
            while not await is_buried():
                assert await nothing(store)


async def test_what_was_not_confirmed_is_named_job_by_job(
    broker: RabbitServer, namespace: str
) -> None:
    """A batch is stored in part: one line takes it, the other is none that keeps it."""
    with channel(broker.url()) as raw:
        raw.queue_declare(f"outlast/{namespace}/default/u", durable=True)
    async with opened(broker, namespace) as store:
        with pytest.raises(EnqueueUncertain) as caught:
            await store.add([job("a"), job("b", task="u"), job("c")])
        assert list(caught.value.ids) == ["b"]
        assert ids(await take(store, 2)) == ["a", "c"]


async def test_a_repeat_is_not_recognised(broker: RabbitServer, namespace: str) -> None:
    """Without records nobody knows what was stored before: both are new, and both run."""
    async with opened(broker, namespace) as store:
        for _ in range(2):
            [answer] = await store.add([job("twice")])
            assert (answer.created, answer.conflict) == (True, False)
        assert ids(await take(store, 2)) == ["twice", "twice"]


# -- crashes


async def test_crashes_are_counted_by_the_broker(broker: RabbitServer, namespace: str) -> None:
    """The last time that it may, it runs alone; then it is buried."""
    seen: list[tuple[int, int, bool]] = []
    for _ in range(3):
        async with opened(broker, namespace) as store:
            if not seen:
                await store.add([job("a")])
            [claim] = await take(store)
            seen.append((claim.job.attempt, claim.job.crashes, claim.job.suspect))
            await store.close()  # with the claim in its hands, as a worker that dies
    assert seen == [(1, 0, False), (2, 1, False), (3, 2, True)]
    async with opened(broker, namespace) as store:
        assert await nothing(store)
        async with asyncio.timeout(60):
            while (await store.depth("default")).dead < 1:
                await store.catch_up(["default"], ["t"])
    [buried] = dead(broker.url(), namespace)
    assert (buried.crashes, buried.failure and buried.failure.kind) == (3, "crash")
    for name in (f"outlast/{namespace}/default/t", f"outlast/{namespace}/default/t!alone"):
        assert take_all(broker.url(), name) == [], "it was taken off where it came from"


async def test_what_was_only_sent_ahead_is_no_crash(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job(f"{n}") for n in range(20)])
    for _ in range(4):
        async with opened(broker, namespace) as store:
            [claim] = await take(store)
            await store.claim(["default"], ["t"], 15, 15.0, "w1")
            await store.catch_up(["default"], ["t"])
            await store.settle([give_back(claim, started=False)])
    async with opened(broker, namespace) as store:
        claims = await take(store, 20)
    assert len({claim.job.id for claim in claims}) == 20


# -- broken lines


async def test_goes_on_after_the_broker_closed_the_connections(
    broker: RabbitServer, namespace: str
) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        [claim] = await take(store)
        assert list(await store.renew([claim], 15.0)) == []
        broker.ctl("close_all_connections", "tried")
        await until_lost(store, claim)
        assert list(await store.settle([done(claim)])) == [Lost(claim, "lost")]
        [again] = await take(store)
        assert (again.job.id, again.job.crashes) == ("a", 1)
        assert list(await store.settle([done(again)])) == []
        await store.add([job("b")])
        assert ids(await take(store)) == ["b"]


async def test_goes_on_after_its_queue_was_deleted(broker: RabbitServer, namespace: str) -> None:
    """Consuming ends, a publish comes back, the queue is made anew, and is consumed from."""
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        [claim] = await take(store)
        await store.settle([done(claim)])
        with channel(broker.url()) as raw:
            raw.queue_delete(f"outlast/{namespace}/default/t")
        await store.add([job("b")])
        assert ids(await take(store)) == ["b"]


async def test_a_new_band_is_heard_of(broker: RabbitServer, namespace: str) -> None:
    async with opened(broker, namespace) as worker, opened(broker, namespace) as other:
        assert await nothing(worker)
        await other.add([job("a")])
        assert ids(await take(worker)) == ["a"]
        await other.add([job("b", priority=9)])
        assert ids(await take(worker)) == ["b"]


async def test_a_broker_that_is_away(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        proxied(broker.port) as proxy,
        opened(broker, namespace, port=proxy.port) as store,
    ):
        await store.add([job("a")])
        monkeypatch.setattr(outbox, "PATIENCE", 0.5)
        proxy.target = 1  # nobody is there
        proxy.cut_at(b"unknown")
        with pytest.raises(EnqueueUncertain):
            await store.add([job("unknown")])
        with pytest.raises(StoreUnavailable):
            await store.add([job("b")])
        proxy.target = broker.port
        await when_it_is_back(store, job("c"))
        found = {*ids(await take(store, 2)), *ids(await take_more(store))}
        assert found - {"unknown"} == {"a", "c"}, "b was not stored"


async def take_more(store: RabbitStore) -> list[Claim]:
    """What is left: the first claim has more sent ahead."""
    found = list(await store.claim(["default"], ["t"], 10, 15.0, "w1"))
    await store.catch_up(["default"], ["t"])
    return [*found, *await store.claim(["default"], ["t"], 10, 15.0, "w1")]


async def test_an_answer_that_was_lost_is_uncertain(broker: RabbitServer, namespace: str) -> None:
    """It names the jobs that were not confirmed, and just them."""
    async with (
        proxied(broker.port) as proxy,
        opened(broker, namespace, port=proxy.port) as store,
    ):
        await store.add([job("first")])
        proxy.cut_at(b"id-of-b")
        with pytest.raises(EnqueueUncertain) as caught:
            await store.add([job("id-of-b"), job("id-of-c")])
        assert set(caught.value.ids) == {"id-of-b", "id-of-c"}
        assert proxy.was_cut
        await store.add([job("id-of-b"), job("id-of-c")])
        found = ids([*await take(store, 3), *await take_more(store)])
        assert {"first", "id-of-b", "id-of-c"} <= set(found)


async def test_a_broker_that_takes_nothing(
    broker: RabbitServer, namespace: str, hurry: Callable[[], None]
) -> None:
    alarm = "({{resource_limit, memory, node()}, []})."
    async with opened(broker, namespace) as store:
        await store.add([job("a"), job("b")])
        [claim, other] = await take(store, 2)
        hurry()
        broker.evaluate(f"rabbit_alarm:set_alarm{alarm}")
        try:
            # The first that is sent is how the broker comes to tell us.
            with pytest.raises((EnqueueUncertain, StoreUnavailable)):
                await store.add([job("c")])
            with pytest.raises(StoreUnavailable, match="takes no messages"):
                await store.add([job("d")])
            assert list(await store.settle([done(claim)])) == [], "that needs no room"
        finally:
            broker.evaluate("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).")
        await when_it_is_back(store, job("e"))
        found = {*ids(await take(store, 2)), *ids(await take_more(store))}
        assert found == {"c", "e"}, "c was uncertain, and d was not stored"
        assert list(await store.settle([done(other)])) == []


# -- queues that are there already


async def test_a_classic_queue_is_refused(broker: RabbitServer, namespace: str) -> None:
    """C47's kind: said, and left as it is."""
    name = f"outlast/{namespace}/default/t"
    with channel(broker.url()) as raw:
        raw.queue_declare(name, durable=True, arguments={"x-max-priority": 10})
    async with opened(broker, namespace) as store:
        for _ in range(2):
            with pytest.raises(DurabilityError, match="no durable quorum queue"):
                await store.add([job("a")])
        await store.add([job("b", task="u")])
        assert ids(await take(store, tasks=["u"])) == ["b"]
    with channel(broker.url()) as raw:
        raw.queue_declare(name, durable=True, arguments={"x-max-priority": 10})


async def test_other_arguments_are_reported(broker: RabbitServer, namespace: str) -> None:
    name = f"outlast/{namespace}/default/t"
    arguments = {"x-queue-type": "quorum", "x-max-length": 5}
    with channel(broker.url()) as raw:
        raw.queue_declare(name, durable=True, arguments=arguments)
    async with opened(broker, namespace) as store:
        with pytest.raises(ConfigurationError, match="another x-"):
            await store.add([job("a")])
    with channel(broker.url()) as raw:
        raw.queue_declare(name, durable=True, arguments=arguments)


# -- opening


async def test_a_wrong_password_is_told_and_not_shown(broker: RabbitServer) -> None:
    for login in (f"guest:{SECRET}", f"nobody:{SECRET}"):
        store = connect(broker.url(user=login))
        assert SECRET not in repr(store) + store.url
        with pytest.raises(ConfigurationError, match="check user, password") as caught:
            await store.open()
        chain: BaseException | None = caught.value
        while chain is not None:
            assert SECRET not in f"{chain!r}"
            chain = chain.__cause__ or chain.__context__


async def test_nobody_is_there() -> None:
    with pytest.raises(StoreUnavailable):
        await connect("amqp://127.0.0.1:1/").open()


async def test_a_virtual_host_that_is_not_there(broker: RabbitServer) -> None:
    with pytest.raises((ConfigurationError, StoreUnavailable), match="nowhere"):
        await connect(broker.url() + "nowhere").open()


async def test_more_than_power_is_not_promised(broker: RabbitServer) -> None:
    with pytest.raises(DurabilityError, match="other nodes"):
        await connect(broker.url(), durability=Durability.REPLICA).open()


async def test_a_broker_that_dies_right_after_the_first_job(namespace: str) -> None:
    """It writes down late what files belong to a new queue; nothing is confirmed before."""
    broker = RabbitServer()
    broker.start()
    try:
        async with opened(broker, namespace) as store:
            await store.add([job("a"), job("b", delay=0.1)])
            broker.kill()
        broker.start()
        async with opened(broker, namespace) as store:
            assert sorted(ids(await take(store, 2))) == ["a", "b"]
    finally:
        broker.remove()


def test_what_kept_it_from_the_broker_is_named() -> None:
    """The client wraps it twice, and shows nothing but the name of its own error."""
    reason = ConnectionRefusedError(111, "Connection refused")
    error = AMQPConnectionError(AMQPConnectorSocketConnectError(reason))
    found = mapped(error, "amqp://db.example:5672/")
    assert isinstance(found, StoreUnavailable)
    assert str(found) == "amqp://db.example:5672/: [Errno 111] Connection refused"


def test_a_line_that_breaks_amid_the_greeting_is_no_wrong_password() -> None:
    """A broker that is killed just then: whoever can wait for another, waits for this one."""
    lost = "StreamLostError: ('Stream connection lost: ConnectionResetError(104, ...)',)"
    for guess in (ProbableAuthenticationError(lost), ProbableAccessDeniedError(lost)):
        found = mapped(guess, "amqp://db.example:5672/")
        assert isinstance(found, StoreUnavailable)
        assert "hung up" in str(found)
