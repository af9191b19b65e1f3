"""The cases of stores that keep records, on a broker whose jobs stand in another store."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import pytest
from tests.cases.rig import FULL, Rig, scaled
from tests.cases.test_c07_zombie import test_c07 as c07
from tests.cases.test_c09_stop_signal import stop_signals
from tests.cases.test_c11_deploys import test_c11 as c11
from tests.cases.test_c29_cancelled_calls import calls_are_cancelled
from tests.cases.test_c32_poison import test_c32 as c32
from tests.cases.test_c34_unknown_task import test_c34 as c34
from tests.cases.test_c36_values import VALUES
from tests.cases.test_c38_repeats import test_c38_fifty_at_once as c38_fifty_at_once
from tests.cases.test_c40_lanes import test_c40 as c40
from tests.cases.test_c42_cancelled import test_c42_claimed_ahead as c42_claimed_ahead
from tests.cases.test_c42_cancelled import test_c42_delayed as c42_delayed
from tests.cases.test_c49_purge import test_c49 as c49
from tests.cases.test_redis import test_c03 as c03
from tests.cases.test_redis import test_c05 as c05
from tests.cases.ticks import one_job_a_tick
from tests.proof.patience import until
from tests.servers import PostgresServer, RabbitServer, RedisServer, shared

from outlast import Outlast
from outlast.job import Status
from outlast.stores.urls import with_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

P = ParamSpec("P")
T = TypeVar("T")
pytestmark = pytest.mark.needs("rabbitmq")

_names = itertools.count(1)


def _in(kind: str, needs: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """With records there."""

    def marked(case: Callable[P, T]) -> Callable[P, T]:
        kinds = pytest.mark.parametrize("rig", [kind], indirect=True)
        return pytest.mark.needs(needs)(kinds(case))

    return marked


in_redis, in_postgres = _in("redis", "redis"), _in("postgresql", "servers")
if_full = pytest.mark.skipif(not FULL, reason="in full alone: the same case runs on the records")


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


@if_full
@in_redis
def test_c03(rig: Rig) -> None:
    """C03: what was handed to a worker that then dies is never read again."""
    c03(rig)


@if_full
@in_redis
def test_c05(rig: Rig) -> None:
    """C05: the lease is shorter than the task, so it is handed out again while it runs."""
    c05(rig)


@in_postgres
def test_c07(rig: Rig) -> None:
    """C07: a paused worker that lost its claim overwrites a task that has finished since."""
    c07(rig)


def test_c09(rig: Rig) -> None:
    """C09: a message popped at the very instant of the stop signal never comes back."""
    stop_signals(rig, scaled(300, 2))


@if_full
@in_postgres
def test_c11(rig: Rig) -> None:
    """C11: every deploy that interrupts a task uses up one attempt, until it is declared dead."""
    c11(rig)


@if_full
@in_postgres
def test_c19(rig: Rig) -> None:
    """C19: several who see the same tick make a task each, or a killed one's tick is lost."""
    one_job_a_tick(rig)


@pytest.mark.needs("redis")
async def test_c29(server: RabbitServer) -> None:
    """C29: a cancelled call leaves its answer behind for the next one on that connection."""
    records = shared(RedisServer)
    records.empty()

    def url_at(port: int) -> str:
        return with_records(server.url(), records.url(port=port, query="durability=process"))

    await calls_are_cancelled(records.port, url_at)


def test_c32(rig: Rig) -> None:
    """C32: a task that kills its worker is redelivered for ever, or acknowledged and lost."""
    c32(rig)


def test_c34(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """C34: a worker that lacks the code for a task deletes it."""
    c34(rig, monkeypatch)


@in_redis
def test_c40(rig: Rig) -> None:
    """C40: a lock survives the crash of its holder, or its limit is ignored after the restart."""
    c40(rig)


@in_postgres
def test_c42_delayed(rig: Rig) -> None:
    """C42: a cancel sent while no worker is up is forgotten: the task runs after the restart."""
    c42_delayed(rig)


@in_redis
def test_c42_claimed_ahead(rig: Rig) -> None:
    """C42: or the one that was fetched ahead."""
    c42_claimed_ahead(rig)


def test_c38(rig: Rig) -> None:
    """C38: a repeat of a key is answered with the first job."""
    c38_fifty_at_once(rig)


@in_postgres
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
