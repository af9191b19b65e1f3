"""Whether a worker really consumes: it is told that it doesn't any more, or finds out by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.rabbit import alarm, channel, ids, job, opened, take

from outlast.errors import EnqueueUncertain, StoreUnavailable
from outlast.job import Lost, done
from outlast.stores.news import WORK
from outlast.stores.rabbitmq import engine
from outlast.stores.rabbitmq.held import holds
from outlast.stores.rabbitmq.intake import Intake
from outlast.stores.rabbitmq.link import Channel
from outlast.stores.rabbitmq.topology import line_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tests.servers import RabbitServer

    from outlast.job import Claim
    from outlast.stores.rabbitmq.intake import Pair
    from outlast.stores.rabbitmq.source import Source
    from outlast.stores.rabbitmq.store import RabbitStore

pytestmark = pytest.mark.needs("rabbitmq")


async def consumes(store: RabbitStore, id: str) -> None:
    """Give it a job and take that: from here on it has a consumer."""
    await store.add([job(id)])
    [claim] = await take(store)
    assert claim.job.id == id
    assert list(await store.settle([done(claim)])) == []


def forget_consumer(broker: RabbitServer, namespace: str, *more: str) -> None:
    """Have the broker's queue forget our consumer, with no word to us; and do more with it."""
    words = (
        '{ok, Q} = rabbit_amqqueue:lookup({resource, <<"/">>, queue,'
        f' <<"{line(namespace)}">>}})',
        "[{Ch, Tag}] = [{element(1, C), element(2, C)} || C <- rabbit_amqqueue:consumers(Q),"
        ' binary:match(element(2, C), <<"outlast.">>) =/= nomatch]',
        "{ok, _, _} = ra:process_command(amqqueue:get_pid(Q),"
        " rabbit_fifo:make_checkout({Tag, Ch}, cancel, #{}))",
    )
    broker.evaluate(", ".join((*words, *more)) + ".")


def line(namespace: str) -> str:
    return f"outlast/{namespace}/default/t"


async def test_a_consumer_that_the_broker_cancels(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue is still there: so it is consumed from again, and at once."""
    monkeypatch.setattr(engine, "LOOK", 3600.0)  # it looks for nothing by itself
    async with opened(broker, namespace) as store:
        await consumes(store, "a")
        forget_consumer(
            broker, namespace, "rabbit_channel:send_command(Ch, {'basic.cancel', Tag, true})"
        )
        await consumes(store, "b")


async def test_a_consumer_that_is_gone_unnoticed(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker finds out by itself that it does not consume."""
    monkeypatch.setattr(engine, "LOOK", 0.0)  # it looks twice a second
    async with opened(broker, namespace) as store:
        await consumes(store, "a")
        forget_consumer(broker, namespace)
        await consumes(store, "b")


async def test_a_consumer_that_gets_nothing_though_there_is_something(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That there are consumers is not enough: this one is another's, who has his hands full."""
    monkeypatch.setattr(engine, "LOOK", 0.0)
    async with opened(broker, namespace) as store:
        await consumes(store, "a")
        with channel(broker.url()) as raw:
            raw.basic_qos(prefetch_count=1)
            raw.basic_consume(line(namespace), lambda *_: None)
            forget_consumer(broker, namespace)
            await store.add([job("his"), job("ours")])
            assert ids(await take(store)) == ["ours"]


async def test_what_was_sent_ahead_goes_to_others_when_nobody_here_asks(
    broker: RabbitServer, namespace: str
) -> None:
    """One that has time is sent ten; when it has none any more, they go to another, at no cost."""
    async with opened(broker, namespace) as busy, opened(broker, namespace) as other:
        await consumes(busy, "a")
        await busy.claim(["default"], ["t"], 10, 15.0, "w1")
        await busy.catch_up(["default"], ["t"])
        await busy.add([job(f"{n}") for n in range(5)])
        await busy.catch_up(["default"], ["t"])
        assert (await busy.depth("default")).ready == 5
        busy._running().intake._rest = 0.0
        claims = await take(other, 5)
        assert {(claim.job.attempt, claim.job.crashes) for claim in claims} == {(1, 0)}


async def test_what_could_not_be_given_back_is_claimed_here(
    broker: RabbitServer,
    namespace: str,
    hurry: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes back by being sent again, which a broker with no memory doesn't take.

    Who asks while it is on its way finds nothing, and is told when it is here again.
    """
    monkeypatch.setattr(engine, "TICK", 3600.0)  # the test turns the hands itself
    async with opened(broker, namespace) as store:
        await store.add([job("first"), job("its line is there", task="other")])
        [first] = await take(store)
        running = store._running()
        intake, outbox = running.intake, running.outbox
        await store.claim(["default"], ["t"], 10, 15.0, "w1")
        await store.add([job(f"{n}") for n in range(5)])
        await store.catch_up(["default"], ["t"])
        with alarm(broker):
            tells = asyncio.ensure_future(store.add([job("tells us", task="other")]))
            async with asyncio.timeout(60):
                while not outbox.blocked:
                    await store.wait(["nothing"], 0.01)
            intake._rest = 0.0
            asyncio.run_coroutine_threadsafe(intake.rest(), running.loop).result(60)
            assert intake.out == 6
            assert not await store.claim(["default"], ["t"], 5, 15.0, "w1")
            waiting = asyncio.ensure_future(store.wait(["default"], 3600.0))
            hurry()
            async with asyncio.timeout(60):
                while not (waiting.done() and tells.done()):
                    running.loop.call_soon_threadsafe(outbox.tick)
                    await store.wait(["nothing"], 0.01)
            claims = await store.claim(["default"], ["t"], 5, 15.0, "w1")
            assert ids(claims) == [f"{n}" for n in range(5)]
            assert {(claim.job.attempt, claim.job.crashes) for claim in claims} == {(1, 0)}
            with pytest.raises((EnqueueUncertain, StoreUnavailable)):
                await tells
            assert list(await store.settle([done(claim) for claim in [first, *claims]])) == []


async def test_lines_that_are_first_asked_for_amid_a_connection(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the lines that were known are looked for, somebody asks for one more."""
    monkeypatch.setattr(engine, "LOOK", 3600.0)  # it looks for nothing by itself
    plain, late = Intake._look, ("default", "late")

    async def look(self: Intake, pairs: Iterable[Pair]) -> None:
        await plain(self, pairs)
        self.asked.add(late)

    async with opened(broker, namespace) as store:
        await store.add([job("a", task="late")])
        monkeypatch.setattr(Intake, "_look", look)
        assert not await store.claim(["default"], ["t"], 1, 15.0, "w1")
        monkeypatch.setattr(Intake, "_look", plain)
        async with asyncio.timeout(60):
            assert ids(await take(store, tasks=["late"])) == ["a"]


async def test_a_consumer_whose_place_is_taken_before_it_begins(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """News that its queue was made anew comes while its channel is being opened.

    It would go on to consume beside the one that follows, and hold what it is sent.
    """
    monkeypatch.setattr(engine, "LOOK", 3600.0)
    plain, begun = Intake._open, []

    async def late(self: Intake, source: Source) -> Channel:
        begun.append(source)
        if len(begun) == 1:
            self._detach(source)
            channel = await plain(self, source)
            self._found(source.place)
            return channel
        return await plain(self, source)

    async with opened(broker, namespace) as store:
        await store.add([job("a"), job("b")])
        monkeypatch.setattr(Intake, "_open", late)
        async with asyncio.timeout(60):
            assert sorted(ids(await take(store, 2))) == ["a", "b"]
        assert len(begun) == 2


async def test_a_claim_is_lost_in_the_moment_in_which_its_channel_is(
    broker: RabbitServer, namespace: str
) -> None:
    """Not a turn of the loop later: what is settled in between would be told to be done."""
    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        [claim] = await take(store)
        running = store._running()
        [source] = running.intake._all
        assert source.channel is not None
        raw: Any = source.channel.raw
        seen: list[bool] = []

        def close() -> None:
            raw.add_on_close_callback(lambda *_: seen.append(holds(claim.receipt)))
            raw.basic_ack(999)  # of a message that was never delivered

        assert holds(claim.receipt)
        running.loop.call_soon_threadsafe(close)
        async with asyncio.timeout(60):
            while not seen:
                await store.wait(["nothing"], 0.01)
        assert seen == [False]
        assert list(await store.settle([done(claim)])) == [Lost(claim, "lost")]


async def test_those_that_run_alone_do_so_whoever_claims(
    broker: RabbitServer, namespace: str
) -> None:
    """Several ask at once: one gets one, and the others none."""
    async with opened(broker, namespace) as store:
        await store.add([job("a"), job("b")])
        arguments = line_arguments(store._running().version, f"outlast/{namespace}/default!dead")
    with channel(broker.url()) as raw:
        raw.queue_declare(f"{line(namespace)}!alone", durable=True, arguments=arguments)
        for _ in range(2):
            _, _, body = raw.basic_get(line(namespace), auto_ack=True)
            raw.basic_publish("", f"{line(namespace)}!alone", body)
    async with asyncio.timeout(60), opened(broker, namespace) as store:
        await store.catch_up(["default"], ["t"])
        asked = (store.claim(["default"], ["t"], 5, 15.0, "w1") for _ in range(5))
        first = [claim for claims in await asyncio.gather(*asked) for claim in claims]
        assert [claim.job.suspect for claim in first] == [True]
        await store.settle([done(first[0])])
        [second] = await take(store)
        assert {first[0].job.id, second.job.id} == {"a", "b"}


async def test_what_is_asked_before_a_consumer_begins_says_nothing_of_it(
    broker: RabbitServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker counts none; when that is read, there is one."""
    monkeypatch.setattr(engine, "LOOK", 3600.0)
    plain = Channel.close

    async def late(self: Channel) -> None:
        await plain(self)
        while store._running().intake._consuming:
            await asyncio.sleep(0)

    async with opened(broker, namespace) as store:
        await store.add([job("a")])
        monkeypatch.setattr(Channel, "close", late)
        await asyncio.gather(*(store.catch_up(["default"], ["t"]) for _ in range(3)))
        assert ids(await take(store)) == ["a"]
    assert "not consumed any more" not in caplog.text


async def test_a_queue_that_is_made_anew_while_jobs_of_the_old_one_run(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is told, at least: what is sent to who consumed before is given to who does now."""
    monkeypatch.setattr(engine, "LOOK", 3600.0)
    async with opened(broker, namespace) as store:
        await store.add([job("running")])
        [claim] = await take(store)
        await store.claim(["default"], ["t"], 10, 15.0, "w1")  # it is sent ten ahead
        await store.catch_up(["default"], ["t"])
        running = store._running()
        [source] = running.intake._all

        def told() -> None:
            running.intake._detach(source)
            running.intake._found(source.place)

        running.loop.call_soon_threadsafe(told)
        await store.add([job(f"{n}") for n in range(9)])
        async with asyncio.timeout(60):
            assert {*ids(await take(store, 9))} == {f"{n}" for n in range(9)}
        assert list(await store.settle([done(claim)])) == []


async def test_a_claim_while_what_was_sent_ahead_goes_back(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets that and no more, and waits for news: so there must be a consumer afterwards."""
    monkeypatch.setattr(engine, "LOOK", 3600.0)
    plain = Intake._stop

    async def stop(self: Intake, source: Source) -> None:
        self.acknowledge(self.take(["default"], ["t"], 2))
        await plain(self, source)
        self._rest = 3600.0

    async with opened(broker, namespace) as store:
        await consumes(store, "a")
        await store.claim(["default"], ["t"], 1, 15.0, "w1")
        await store.add([job("ahead")])
        await store.catch_up(["default"], ["t"])
        monkeypatch.setattr(Intake, "_stop", stop)
        intake = store._running().intake
        intake._rest = 0.0
        async with asyncio.timeout(60):
            while intake._rest == 0.0:
                await store.wait(["nothing"], 0.01)
            monkeypatch.setattr(Intake, "_stop", plain)
            store._news.look(WORK, store._news.count(WORK, ["default"]))
            await store.add([job("next")])
            while not (claims := await _rung(store)):
                pass
        assert ids(claims) == ["next"]


async def _rung(store: RabbitStore) -> Sequence[Claim]:
    await store.wait(["default"], 3600.0)
    return await store.claim(["default"], ["t"], 1, 15.0, "w1")
