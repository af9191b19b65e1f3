"""The same transport on PostgreSQL and Redis: workers on many hosts, here on one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.contrib.kombu.rig import PATIENCE, Rig
from tests.contrib.kombu.store import look
from tests.proof.patience import until
from tests.servers import PostgresServer, RedisServer, shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_schemas = itertools.count(1)


@pytest.fixture(
    params=[
        pytest.param("postgresql", marks=pytest.mark.needs("servers")),
        pytest.param("redis", marks=pytest.mark.needs("redis")),
    ]
)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "redis":
        server = shared(RedisServer)
        server.empty()
        url = server.url(query="durability=process")
    else:
        url = shared(PostgresServer).url(schema=f"celery{next(_schemas)}")
    rig = Rig(tmp_path, f"outlast+{url}")
    rig.backend = rig.broker
    yield rig
    rig.close()


def test_a_day_of_a_worker(rig: Rig) -> None:
    """Results, eta, remote control, and a kill in the midst of a task."""
    victim = rig.worker("-c", "1", "-P", "prefork", name="victim", worker_prefetch_multiplier=1)
    assert rig.send("note", 1).get(timeout=PATIENCE) == 1
    inspect = rig.app.control.inspect(timeout=PATIENCE, limit=1)
    assert inspect.ping() == {"victim@here": {"ok": "pong"}}
    far = rig.send("note", 2, countdown=86400.0)
    soon = rig.send("note", 3, countdown=0.5)
    assert soon.get(timeout=PATIENCE) == 3
    assert look(rig)[0].delayed == 1
    held = rig.send("hold", 4, rig.gate)
    until(lambda: rig.starts() == [4], PATIENCE, "it runs")
    rig.kill(victim)
    rig.open_gate()
    rig.worker("-c", "1", "-P", "threads", name="survivor")
    assert held.get(timeout=PATIENCE) == 4
    assert far.state == "PENDING"
    assert rig.app.control.purge() == 1
    until(lambda: look(rig)[0].live == 0, PATIENCE, "nothing is left")
