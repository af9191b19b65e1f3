"""Parts of the RabbitMQ store by themselves, with no broker: what comes before what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pika
import pytest
from tests.servers import free_port

from outlast import Outlast
from outlast.chance import SeededChance
from outlast.clock import SystemClock
from outlast.errors import Unsupported
from outlast.job import Failure, Job, done, retry
from outlast.stores.rabbitmq.address import read as address_of
from outlast.stores.rabbitmq.held import Held, claimed
from outlast.stores.rabbitmq.letters import Packer, State
from outlast.stores.rabbitmq.op import Op
from outlast.stores.rabbitmq.outbox import Batch, Outbox, Posting
from outlast.stores.rabbitmq.settling import Settling
from outlast.stores.rabbitmq.source import Source
from outlast.stores.rabbitmq.topology import Place, line_arguments, plain_arguments
from outlast.stores.rabbitmq.work import Work

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from outlast.job import Claim

PLACE = Place.of("n", "default", "t", "")
OOPS = Failure(kind="error", message="oops")


@pytest.mark.parametrize(("version", "limit"), [((3, 10), None), ((3, 13), None), ((4, 0), -1)])
def test_the_brokers_limit_of_deliveries_is_out_of_the_way(
    version: tuple[int, int], limit: int | None
) -> None:
    """Without -1 there are 20 from 4.0 on; with it 3.10 drops what comes back once."""
    for arguments in (plain_arguments(version), line_arguments(version, "dead")):
        assert arguments.get("x-delivery-limit") == limit
        assert arguments["x-queue-type"] == "quorum"


def test_the_broker_itself_drops_nothing_of_a_line() -> None:
    arguments = line_arguments((3, 10), "dead")
    assert arguments["x-dead-letter-routing-key"] == "dead"
    assert arguments["x-dead-letter-strategy"] == "at-least-once"
    assert arguments["x-overflow"] == "reject-publish"


class Broker:
    """Takes what is published and acknowledged, and confirms when it is told to."""

    def __init__(self) -> None:
        self.sent: list[Posting] = []
        self.acknowledged: list[Held] = []
        self.answered = False
        self.outbox = self.intake = self

    def send(self, posting: Posting) -> None:
        self.sent.append(posting)

    def acknowledge(self, helds: list[Held]) -> None:
        self.acknowledged += helds

    async def settled(self, helds: list[Held]) -> None: ...

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        with pytest.raises(StopIteration):
            work.send(None)

    def answer(self, op: Any) -> None:
        self.answered = True


def held_claim(work: Work) -> tuple[Held, Claim]:
    job = Job(id="a", task="t", max_attempts=3)
    held = Held(Source(PLACE), 1, Packer().pack(job, State(0.0)), 0, 1, 0.0)
    claim = work.claim(held, "w1", 0.0)
    assert not isinstance(claim, str | Failure)
    assert claim is not None
    held.claim = claim
    claimed[claim.receipt] = held
    return held, claim


@pytest.mark.parametrize("kind", ["retry", "then"])
def test_what_follows_is_confirmed_before_a_job_is_acknowledged(kind: str) -> None:
    work, broker = Work("n", SystemClock(), SeededChance(1), None), Broker()
    held, claim = held_claim(work)
    try:
        verdict = (
            retry(claim, 0.0, OOPS)
            if kind == "retry"
            else done(claim, None, (Job(id="b", task="t"),))
        )
        Settling(work).begin(cast("Any", broker), Op(lambda engine, op: None), [verdict])
        assert [posting.id for posting in broker.sent] == ["a" if kind == "retry" else "b"]
        assert (broker.acknowledged, broker.answered) == ([], False)
        assert broker.sent[0].batch is not None
        broker.sent[0].batch.ended()
        assert (broker.acknowledged, broker.answered) == ([held], True)
    finally:
        claimed.pop(claim.receipt, None)


class Line:
    """A channel that publishes, as the outbox sees it."""

    def __init__(self) -> None:
        self.raw = self
        self.published: list[tuple[str, str, bool]] = []

    def basic_publish(
        self, exchange: str, key: str, body: bytes, properties: Any, *, mandatory: bool
    ) -> None:
        assert properties.delivery_mode == 2
        self.published.append((exchange, key, mandatory))


class Declared:
    """Everything is there, until a message comes back."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def has(self, name: str, level: int) -> bool:
        return True

    def forget(self, name: str) -> None:
        self.forgotten.append(name)


def confirmation(tag: int) -> Any:
    return pika.frame.Method(1, pika.spec.Basic.Ack(tag, multiple=False))


def returned(key: str) -> Any:
    return pika.spec.Basic.Return(312, "NO_ROUTE", "outlast/lines", key)


async def test_what_comes_back_is_not_stored_though_it_is_confirmed() -> None:
    """A broker confirms what no queue took, having sent it back first."""
    outbox, line, declared = Outbox(address_of("amqp://h", {}), "n"), Line(), Declared()
    outbox._channel, outbox._declaring = cast("Any", line), cast("Any", declared)
    told: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
    outbox.send(Posting("a", b"body", PLACE, Batch(1, told.set_result)))
    assert line.published == [("outlast/lines", PLACE.name, True)]
    outbox._on_return(None, returned(PLACE.name), pika.BasicProperties(message_id="a"), b"body")
    outbox._on_confirm(confirmation(1))
    assert not told.done(), "it was stored nowhere"
    assert declared.forgotten == [PLACE.name]
    assert len(line.published) == 2
    outbox._on_confirm(confirmation(2))
    assert (await told).failures == []


async def test_of_messages_that_are_alike_it_is_told_which_came_back() -> None:
    """Bells have no id and no body: where they were sent to tells those of two lines apart."""
    outbox, line, declared = Outbox(address_of("amqp://h", {}), "n"), Line(), Declared()
    outbox._channel, outbox._declaring = cast("Any", line), cast("Any", declared)
    gone = Place.of("n", "default", "gone", "!bell")
    for place in (Place.of("n", "default", "t", "!bell"), gone):
        outbox.send(Posting("", b"", place, Batch(1, lambda _: None)))
    outbox._on_return(None, returned(gone.name), pika.BasicProperties(message_id=""), b"")
    for tag in (1, 2):
        outbox._on_confirm(confirmation(tag))
    assert declared.forgotten == [gone.name]
    assert line.published[2:] == [("outlast/lines", gone.name, True)]


@pytest.mark.parametrize(
    ("way", "silent"),
    [
        ({}, PLACE.name),
        ({"delay": 90 * 86400.0}, "outlast/delay/25"),
        ({"to_dead": True}, PLACE.dead),
    ],
    ids=["at once", "by the ladder", "to the dead"],
)
async def test_which_queue_confirms_nothing_is_told(way: dict[str, Any], silent: str) -> None:
    """If it is one alone that has no leader, nobody can guess which."""
    outbox = Outbox(address_of("amqp://h", {}), "n")
    outbox._channel, outbox._declaring = cast("Any", Line()), cast("Any", Declared())
    told: asyncio.Future[Batch] = asyncio.get_running_loop().create_future()
    posting = Posting("a", b"body", PLACE, Batch(1, told.set_result), **way)
    outbox.send(posting)
    posting.at -= 16.0
    outbox.tick()
    [(_, error, uncertain)] = (await told).failures
    assert f"'{silent}'" in str(error)
    assert "no leader" in str(error)
    assert uncertain


async def test_longer_than_the_broker_lets_it_is_refused_when_the_app_opens() -> None:
    """Where the store is, and so what it can do, is known for sure when the app opens it."""
    app = Outlast(f"amqp://127.0.0.1:{free_port()}/")

    @app.task(name="long", timeout=1711.0)
    async def long() -> None: ...

    with pytest.raises(Unsupported, match=r"task 'long'.*records.*consumer_timeout"):
        await app.open()  # before it has found out that nobody is there
