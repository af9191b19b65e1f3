"""The stores that the suite runs over, each with a clock of the test's own."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
from typing import TYPE_CHECKING, Any, cast

import pytest
from pika.exceptions import ChannelClosed
from tests.fakes import FakeClock
from tests.rabbit import channel
from tests.servers import PostgresServer, RabbitServer, RedisServer, shared

from outlast.chance import SeededChance
from outlast.store import Durability, Ledger, offers
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.conformance.steps import FullStore

KINDS = ("memory", "sqlite", "postgresql", "redis", "rabbitmq")
RECORDED = ("rabbitmq+memory", "rabbitmq+sqlite", "rabbitmq+postgresql", "rabbitmq+redis")
"""A broker with the records in another store: all that this one can do."""

# A broker keeps no records: nothing can be looked up, and time there is the broker's own. So these
# of the promises can be seen on RabbitMQ by this suite; tests/stores/test_rabbitmq.py has the rest.
ON_A_BROKER = {
    "test_add": """
        test_answers_are_aligned_with_the_input test_nothing_to_add
        test_the_same_id_twice_in_a_batch test_many_at_once_keep_each_callers_order
    """,
    "test_claim_order": """
        test_receipts_are_random test_the_same_job_never_gets_the_same_receipt
        test_a_running_job_is_not_given_out_again test_no_limit_no_claims test_first_in_first_out
        test_order_survives_reopening test_nothing_asked_for
        test_names_given_twice_give_nothing_twice
        test_an_unknown_task_stays_queued_and_holds_nobody_up
    """,
    "test_direct": """
        test_a_whole_life test_mixed_calls_keep_one_order test_a_claim_that_is_awaited
    """,
    "test_lifecycle": """
        test_open_twice_and_close_twice test_open_again_after_close
        test_what_was_accepted_is_there_after_close test_many_open_at_once
        test_its_url_opens_the_same_jobs
    """,
    "test_settle": "test_nothing_to_settle",
    "test_unsupported": "test_every_store_has_its_entry test_features",
    "test_wait": """
        test_a_timeout test_no_time_at_all test_wakes_for_a_new_job
        test_wakes_for_jobs_that_come_together test_wakes_for_one_of_several_queues
    """,
}

# With records it can do all of it. These are the files that are run in CI, for each place of the
# records some; OUTLAST_FULL_RECORDS=1 runs everything, in a quarter of an hour.
IN_CI = {
    "rabbitmq+memory": ("test_unsupported", "test_capacity"),
    "rabbitmq+sqlite": ("test_unsupported", "test_wait"),
    "rabbitmq+postgresql": ("test_unsupported", "test_direct"),
    "rabbitmq+redis": ("test_unsupported", "test_cancel_safety"),
}
FULL = bool(os.environ.get("OUTLAST_FULL_RECORDS"))
# A bell comes through a broker, whose time is real: none of these may come early, or late by more
# than a hundredth of a second. tests/stores/test_rabbitmq_records.py waits for such jobs too.
BY_THE_CLOCK = """
    test_a_timeout test_wakes_when_a_delayed_job_comes_due test_wakes_when_a_retry_comes_due
    test_a_nearer_moment_added_while_waiting test_nobody_spins_on_jobs_that_nobody_knows
""".split()

PROMPT = ("sqlite", "postgresql")
"""Whose claims wait where the work arrives."""

_names = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what has no meaning on a broker, or takes too long in CI."""
    items[:] = [item for item in items if not _is_beyond(item)]


def _is_beyond(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    kind = None if call is None else call.params.get("place")
    if item.path.stem == "test_claim_next" and kind not in PROMPT:
        return True
    if kind in IN_CI:
        name = getattr(item, "originalname", item.name)
        return name in BY_THE_CLOCK or not (FULL or item.path.stem in IN_CI[kind])
    return _is_beyond_a_broker(item)


def _is_beyond_a_broker(item: pytest.Item) -> bool:
    call = getattr(item, "callspec", None)
    if call is None or call.params.get("place") != "rabbitmq":
        return False
    name = getattr(item, "originalname", item.name)
    return name not in ON_A_BROKER.get(item.path.stem, "").split()


class Place:
    """Where the jobs of one test are: any number of handles, one clock, one URL."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind = kind
        self.url = url
        self.prefix = f"t{next(_names)}." if kind == "rabbitmq" else ""
        """A broker isn't emptied: each test has namespaces of its own there. With records it needs
        none: the bells that are left of another test are as good as any that come twice."""
        self.clock = FakeClock()
        self._chance = SeededChance(7)
        self._opened: list[FullStore] = []

    def connect(self, namespace: str = "default") -> FullStore:
        """A handle that is not open yet."""
        in_memory = self.kind.endswith("memory")
        required = Durability.MEMORY if in_memory else Durability.PROCESS
        store = connect(
            self.url,
            namespace=self.prefix + namespace,
            durability=required,
            clock=self.clock,
            chance=self._chance,
        )
        assert offers(store, Ledger) or self.kind == "rabbitmq"
        self._opened.append(cast("FullStore", store))
        return self._opened[-1]

    async def open(self, namespace: str = "default") -> FullStore:
        """One more handle on the same jobs."""
        store = self.connect(namespace)
        await store.open()
        return store

    async def close(self) -> None:
        while self._opened:
            await self._opened.pop().close()

    async def reopen(self) -> FullStore:
        """Close every handle, as at the end of a program, and open a first one anew."""
        await self.close()
        return await self.open()


def _has_sqlite() -> bool:
    try:
        return hasattr(importlib.import_module("outlast.stores.sqlite"), "open_sqlite")
    except ImportError:
        return False


def _param(kind: str) -> Any:
    needs = {"postgresql": "servers", "redis": "redis", "rabbitmq": "rabbitmq"}
    parts = [part for part in kind.split("+") if part in needs]
    return pytest.param(kind, marks=[pytest.mark.needs(needs[part]) for part in parts])


@pytest.fixture(params=map(_param, (*KINDS, *RECORDED)))
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    broker, _, kind = request.param.rpartition("+")
    if kind == "sqlite" and not _has_sqlite():
        pytest.skip("NOT TESTED: outlast.stores.sqlite is not there")
    url = f"sqlite:///{tmp_path}/jobs.db" if kind == "sqlite" else f"memory://t{next(_names)}"
    if kind == "redis":
        redis = shared(RedisServer)
        redis.empty()
        url = redis.url()
    if kind == "postgresql":
        server = shared(PostgresServer)
        await server.empty()
        url = server.url()
    if "rabbitmq" in (kind, broker):
        url = shared(RabbitServer).url(query=f"records={url}" if broker else "")
        if broker:
            _silence(shared(RabbitServer))
        # For a broker that dies within a moment, and here it doesn't.
        monkeypatch.setattr("outlast.stores.rabbitmq.declaring.SETTLE", 0.0)
    place = Place(request.param, url)
    yield place
    await place.close()


def _silence(server: RabbitServer) -> None:
    """Take away the bells that another test has left in the line that most of them use."""
    with channel(server.url()) as raw, contextlib.suppress(ChannelClosed):
        raw.queue_purge("outlast/default/default/!bell")


@pytest.fixture
async def store(place: Place) -> FullStore:
    return await place.open()


@pytest.fixture
def clock(place: Place) -> FakeClock:
    return place.clock
