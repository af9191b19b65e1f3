"""The stores that the suite runs over, each with a clock of the test's own."""

from __future__ import annotations

import importlib
import itertools
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.conformance.steps import FullStore
from tests.fakes import FakeClock
from tests.servers import PostgresServer, RabbitServer, RedisServer, shared

from outlast.chance import SeededChance
from outlast.store import Durability
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

KINDS = ("memory", "sqlite", "postgresql", "redis", "rabbitmq")

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

_names = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what has no meaning on a broker."""
    items[:] = [item for item in items if not _is_beyond_a_broker(item)]


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
        """A broker isn't emptied: each test has namespaces of its own there."""
        self.clock = FakeClock()
        self._chance = SeededChance(7)
        self._opened: list[FullStore] = []

    def connect(self, namespace: str = "default") -> FullStore:
        """A handle that is not open yet."""
        required = Durability.MEMORY if self.kind == "memory" else Durability.PROCESS
        store = connect(
            self.url,
            namespace=self.prefix + namespace,
            durability=required,
            clock=self.clock,
            chance=self._chance,
        )
        assert isinstance(store, FullStore) or self.kind == "rabbitmq"
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
    marks = [pytest.mark.needs(needs[kind])] if kind in needs else []
    return pytest.param(kind, marks=marks)


@pytest.fixture(params=map(_param, KINDS))
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    kind = request.param
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
    if kind == "rabbitmq":
        url = shared(RabbitServer).url()
        # For a broker that dies within a moment, and here it doesn't.
        monkeypatch.setattr("outlast.stores.rabbitmq.declaring.SETTLE", 0.0)
    place = Place(kind, url)
    yield place
    await place.close()


@pytest.fixture
async def store(place: Place) -> FullStore:
    return await place.open()


@pytest.fixture
def clock(place: Place) -> FakeClock:
    return place.clock
