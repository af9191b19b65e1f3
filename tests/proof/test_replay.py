"""Recorded lives of the store, cut after any operation: what was acknowledged is there again."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest
from tests.proof.bad_sync import judge_after
from tests.proof.replay import replay

if TYPE_CHECKING:
    from pathlib import Path

from outlast.store import Durability
from outlast.stores.sqlite import schema

LIVES = {
    "add": ("add_one_by_one", "add_many"),
    "keys": ("add_keyed", "add_keyed"),
    "claim": ("add_many", "claim_and_settle"),
    "settle": ("add_many", "settle_every_way"),
    "worker": ("add_many", "lose_a_worker", "claim_and_settle"),
    "people": ("add_many", "ask"),
    "purge": ("add_many", "keep", "purge"),
    "checkpoint": ("fill_the_log",),
    "together": ("all_at_once", "all_at_once"),
    "reopen": ("add_one_by_one", "come_back", "claim_and_settle", "come_back"),
}


@pytest.mark.timeout(360)
@pytest.mark.parametrize("life", LIVES)
def test_a_power_cut_after_any_operation_loses_nothing(life: str) -> None:
    total = replay(LIVES[life], seed=1, replays=520, to_the_end=False)
    assert total.broken == {}, total.stories
    assert total.replays >= 500
    assert total.acknowledged > 0


@pytest.mark.timeout(360)
def test_a_power_cut_in_a_migration_leaves_the_old_schema_or_the_new() -> None:
    with mock.patch.object(schema, "MIGRATIONS", schema.MIGRATIONS):
        acts = ("add_many", "migrate", "claim_and_settle")
        total = replay(acts, seed=2, replays=520, drain_each=4)
        assert len(schema.MIGRATIONS) > 1
    assert total.broken == {}, total.stories


@pytest.mark.timeout(360)
@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8])
def test_s3_a_failed_sync_costs_nothing_that_was_acknowledged(nth: int) -> None:
    """On Linux the next sync "succeeds" though the data of the failed one is gone for good."""
    acts = ("add_one_by_one", "add_many", "claim_and_settle", "add_one_by_one")
    total = replay(acts, seed=4, replays=120, modes=("drop", "rand"), bad_sync=nth)
    assert total.acknowledged > 10
    assert total.broken == {}, total.stories


@pytest.mark.timeout(240)
@pytest.mark.parametrize("nth", [1, 2, 5])
def test_s3_a_kill_after_a_failed_sync_and_then_a_power_cut(nth: int, tmp_path: Path) -> None:
    assert judge_after(tmp_path, nth) == {}


@pytest.mark.timeout(240)
def test_the_replay_sees_what_a_weaker_setting_loses() -> None:
    weak = replay(
        ("add_many", "claim_and_settle"), seed=3, replays=200, durability=Durability.PROCESS
    )
    assert weak.lossy > 20, "a rig that has never caught a loss proves nothing"
    kept = replay(("add_many",), seed=3, replays=50, modes=("keep",), durability=Durability.PROCESS)
    assert kept.lossy == 0
