"""The cases of stores that keep records, on a broker whose jobs stand in another store."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.cases.rig import Rig, scaled
from tests.cases.test_c09_stop_signal import stop_signals
from tests.cases.test_c34_unknown_task import test_c34 as c34
from tests.cases.test_c36_values import VALUES
from tests.cases.test_c38_repeats import test_c38_fifty_at_once as c38_fifty_at_once
from tests.cases.test_c40_lanes import test_c40 as c40
from tests.cases.test_c42_cancelled import test_c42_claimed_ahead as c42_claimed_ahead
from tests.cases.test_c42_cancelled import test_c42_delayed as c42_delayed
from tests.cases.test_c49_purge import test_c49 as c49
from tests.proof.patience import until
from tests.servers import PostgresServer, RabbitServer, RedisServer, shared

from outlast import Outlast
from outlast.job import Status
from outlast.stores.urls import with_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("rabbitmq")

_names = itertools.count(1)


@pytest.fixture
def server() -> RabbitServer:
    return shared(RabbitServer)


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path, server: RabbitServer) -> Iterator[Rig]:
    kind = getattr(request, "param", "sqlite")
    records = f"sqlite:///{tmp_path}/records.db"
    if kind == "redis":
        shared(RedisServer).empty()
        records = shared(RedisServer).url(query="durability=process")
    if kind == "postgresql":
        records = shared(PostgresServer).url(schema=f"case{next(_names)}")
    vhost = server.make_vhost(f"recorded{next(_names)}")
    made = Rig(tmp_path, with_records(server.url(vhost=vhost), records))
    yield made
    made.close()


def test_c09(rig: Rig) -> None:
    """C09: a message popped at the very instant of the stop signal never comes back."""
    stop_signals(rig, scaled(300, 2))


def test_c34(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """C34: a worker that lacks the code for a task deletes it."""
    c34(rig, monkeypatch)


@pytest.mark.needs("redis")
@pytest.mark.parametrize("rig", ["redis"], indirect=True)
def test_c40(rig: Rig) -> None:
    """C40: a lock survives the crash of its holder, or its limit is ignored after the restart."""
    c40(rig)


@pytest.mark.needs("servers")
@pytest.mark.parametrize("rig", ["postgresql"], indirect=True)
def test_c42_delayed(rig: Rig) -> None:
    """C42: a cancel sent while no worker is up is forgotten: the task runs after the restart."""
    c42_delayed(rig)


@pytest.mark.needs("redis")
@pytest.mark.parametrize("rig", ["redis"], indirect=True)
def test_c42_claimed_ahead(rig: Rig) -> None:
    """C42: or the one that was fetched ahead."""
    c42_claimed_ahead(rig)


def test_c38(rig: Rig) -> None:
    """C38: a repeat of a key is answered with the first job."""
    c38_fifty_at_once(rig)


@pytest.mark.needs("servers")
@pytest.mark.parametrize("rig", ["postgresql"], indirect=True)
def test_c49(rig: Rig) -> None:
    """C49: purge reports a number but leaves delayed and fetched tasks, which then run."""
    c49(rig)


async def test_c36(server: RabbitServer, tmp_path: Path) -> None:
    """C36: tuples arrive as lists, integer keys as strings, dates as datetimes; now back again."""
    app = Outlast(
        server.url(), records=f"sqlite:///{tmp_path}/c36.db", namespace=f"case{next(_names)}"
    )
    tasks = []
    for number, (_, annotation) in enumerate(VALUES):

        async def back(it: Any) -> Any:
            return it

        back.__annotations__ = {"it": annotation, "return": annotation}
        tasks.append(app.task(name=f"back{number}")(back))
    async with app, app.worker():
        for task, (value, _) in zip(tasks, VALUES, strict=True):
            found = await (await task.enqueue(value)).result(timeout=60)
            assert (type(found), found) == (type(value), value)


def test_workers_and_the_broker_are_killed(rig: Rig, server: RabbitServer) -> None:
    """Whatever dies in whichever order, and while the broker is down: what was accepted ends."""
    accepted: list[str] = []
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            accepted.extend(rig.enqueue(*[("instant", n) for n in range(5)]))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for n in range(scaled(20, 2)):
            worker = rig.start("-c", "4")
            until(partial(_has, accepted, len(accepted) + 20), 60.0, "some are accepted")
            if n % 2:
                server.kill()
                until(partial(_has, accepted, len(accepted) + 20), 60.0, "and with no broker")
            rig.kill(worker)
        last = rig.start("-c", "4")
        seen = len(accepted)
        rig.until_ended(accepted[:seen], 120.0)
        server.start()
    finally:
        over.set()
        producer.join()
    rig.until_ended(accepted, 120.0)
    assert rig.statuses(accepted) == {Status.DONE: len(accepted)}
    assert rig.stop(last) == 0


def _has(accepted: list[str], many: int) -> bool:
    return len(accepted) >= many
