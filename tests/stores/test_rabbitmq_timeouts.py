"""How long a run may last on a broker, and what becomes of one that lasts longer."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest
from tests.rabbit import consumer_timeout, ids, job, opened, take, until_lost

from outlast import Outlast
from outlast.errors import Unsupported
from outlast.job import Lost, done
from outlast.stores.rabbitmq import intake

if TYPE_CHECKING:
    from tests.servers import RabbitServer

pytestmark = pytest.mark.needs("rabbitmq")


async def test_nothing_is_lost_when_the_broker_takes_jobs_away(
    broker: RabbitServer, namespace: str
) -> None:
    """Nobody has told us how short its timeout is: one job is held for longer, beside others.

    What is settled here at once is to be settled in time on a busy machine, too.
    """
    with consumer_timeout(broker, 5.0):
        async with opened(broker, namespace, query="consumer_timeout=none") as store:
            await store.add([job("slow"), job("ahead"), job("beside", task="u")])
            [slow] = await take(store)
            [beside] = await take(store, tasks=["u"])
            assert (slow.job.id, slow.job.timeout, beside.job.id) == ("slow", None, "beside")
            assert list(await store.settle([done(beside)])) == []
            await until_lost(store, slow)
            assert list(await store.settle([done(slow)])) == [Lost(slow, "lost")]
            seen: dict[str, int] = {}
            while len(seen) < 2:
                for claim in await take(store, tasks=["t", "u"]):
                    seen[claim.job.id] = claim.job.crashes
                    assert list(await store.settle([done(claim)])) == []
            # From 4.3 on the broker doesn't count it as if a worker had died.
            counted = 1 if store.library.split()[1] < "4.3" else 0
            assert (set(seen), seen["slow"]) == ({"slow", "ahead"}, counted)
            await store.add([job("after")])
            assert ids(await take(store)) == ["after"], "the worker goes on consuming"


async def test_what_was_sent_ahead_is_not_held_until_it_is_too_late(
    broker: RabbitServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A band of low priority waits in the worker as long as there is more urgent work."""
    monkeypatch.setattr(intake, "STALE", 0.0)
    async with opened(broker, namespace) as busy, opened(broker, namespace) as other:
        await busy.add([job("low", priority=-1)])
        await busy.catch_up(["default"], ["t"])

        async def claim_what_is_urgent() -> None:
            while True:
                await busy.claim(["default"], ["urgent"], 1, 15.0, "w1")
                await busy.wait(["default"], 0.01)

        claiming = asyncio.create_task(claim_what_is_urgent())
        try:
            assert ids(await take(other)) == ["low"]
        finally:
            claiming.cancel()


async def test_a_run_is_held_to_what_is_left_since_the_delivery(
    broker: RabbitServer, namespace: str
) -> None:
    async with opened(broker, namespace) as store:
        await store.add([job("a"), job("b", timeout=1710.0), job("c", timeout=7.0)])
        a, b, c = (claim.job.timeout or 0.0 for claim in await take(store, 3))
    assert c == 7.0
    assert 1500.0 < a < 1710.0
    assert 1500.0 < b < 1710.0


def app_of(broker: RabbitServer, namespace: str) -> Outlast:
    return Outlast(broker.url(), namespace=namespace)


async def test_longer_than_the_broker_lets_it_is_refused_at_registration(
    broker: RabbitServer, namespace: str
) -> None:
    app = app_of(broker, namespace)
    async with app:

        @app.task(name="short", timeout=1710.0)
        async def short() -> None: ...

        with pytest.raises(Unsupported, match=r"task 'long'.*records.*consumer_timeout"):

            @app.task(name="long", timeout=1711.0)
            async def long() -> None: ...

        with pytest.raises(Unsupported, match=r"task 'short'.*records.*consumer_timeout"):
            short.using(timeout=1711.0)
        assert set(app.tasks) == {"short"}


async def test_no_timeout_is_told_once_a_task(
    broker: RabbitServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of(broker, namespace)

    @app.task(name="any")
    async def any() -> None: ...

    @app.task(name="held", timeout=60.0)
    async def held() -> None: ...

    with caplog.at_level(logging.WARNING, "outlast.desk"):
        for _ in range(2):
            async with app:
                any.using(priority=1)
        async with app:
            held.using(timeout=None)
    told = [record.getMessage() for record in caplog.records if record.name == "outlast.desk"]
    assert [("'any'" in text, "'held'" in text, "1710 s" in text) for text in told] == [
        (True, False, True), (False, True, True),
    ]  # fmt: skip
