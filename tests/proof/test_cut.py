"""Power cuts on a real file system: what settings of SQLite, servers and brokers lose."""

from __future__ import annotations

import pytest
from tests.proof.cut import sweep

from outlast.store import Durability

pytestmark = [pytest.mark.needs("cut"), pytest.mark.timeout(360)]


def test_plain_sqlite_with_full_sync_loses_nothing() -> None:
    tally = sweep("plain-full", rounds=5, seed=1)
    assert (tally.rounds, tally.empty, tally.lost, tally.broken) == (5, 0, 0, {})


@pytest.mark.parametrize("load", ["plain-normal", "plain-off"])
def test_the_rig_sees_what_weaker_settings_lose(load: str) -> None:
    tally = sweep(load, rounds=8, seed=1)
    assert tally.lost > 0, "a rig that has never caught a loss proves nothing"


@pytest.mark.parametrize(
    ("load", "rounds", "said"),
    [
        ("outlast-power", 20, Durability.POWER),
        ("outlast-process", 4, Durability.PROCESS),
        ("outlast-memory", 4, Durability.PROCESS),
        ("outlast-tmpfs", 2, Durability.PROCESS),
    ],
)
def test_what_doctor_says_is_what_the_cut_does(load: str, rounds: int, said: Durability) -> None:
    """SQLite with FULL, NORMAL and OFF on ext4, and on a tmpfs: what says power loses nothing."""
    tally = sweep(load, rounds=rounds, seed=1)
    assert tally.rounds == rounds
    assert tally.empty < rounds / 2
    assert tally.predicted == str(said)
    if said >= Durability.POWER:
        assert (tally.lost, tally.broken) == (0, {}), tally.stories
    else:
        assert tally.lost > 0


def test_a_server_of_postgresql_loses_nothing_in_a_cut() -> None:
    """With its defaults. What weaker settings lose, ``scripts/soak --only cut-postgres`` shows."""
    tally = sweep("postgres-power", rounds=1, seed=1, module="tests.proof.cut_postgres")
    assert (tally.rounds, tally.empty, tally.lost, tally.broken) == (1, 0, 0, {}), tally.stories
    assert tally.predicted == str(Durability.POWER)


@pytest.mark.needs("redis")
def test_a_server_that_syncs_each_write_loses_nothing() -> None:
    """Two cuts; what weaker settings lose is a piece of the soak (cut-redis)."""
    tally = sweep("redis-always", rounds=2, seed=1, module="tests.proof.cut_redis")
    assert (tally.rounds, tally.predicted) == (2, str(Durability.POWER))
    assert tally.acknowledged
    assert (tally.lost, tally.broken) == (0, {}), tally.stories


@pytest.mark.needs("rabbitmq")
def test_a_broker_keeps_quorum_queues_and_loses_classic_ones() -> None:
    """Each job is confirmed twice, by our store and in a durable classic queue beside it."""
    tally = sweep("rabbit-beside", rounds=2, seed=1, module="tests.proof.cut_rabbit")
    assert (tally.rounds, tally.empty) == (2, 0)
    assert (tally.lost, tally.broken) == (0, {}), tally.stories
    assert tally.beside > 0, "a rig that has never caught a loss proves nothing"
