"""Power cuts on a real file system: what each setting of SQLite, and outlast, loses."""

from __future__ import annotations

import pytest
from tests.proof.cut import sweep

pytestmark = [pytest.mark.needs("cut"), pytest.mark.timeout(360)]


def test_plain_sqlite_with_full_sync_loses_nothing() -> None:
    tally = sweep("plain-full", rounds=5, seed=1)
    assert (tally.rounds, tally.empty, tally.lost, tally.broken) == (5, 0, 0, {})


@pytest.mark.parametrize("load", ["plain-normal", "plain-off"])
def test_the_rig_sees_what_weaker_settings_lose(load: str) -> None:
    tally = sweep(load, rounds=8, seed=1)
    assert tally.lost > 0, "a rig that has never caught a loss proves nothing"


def test_outlast_loses_nothing_and_undoes_nothing() -> None:
    tally = sweep("outlast-power", rounds=20, seed=1)
    assert tally.rounds == 20
    assert tally.empty < 10
    assert (tally.lost, tally.broken) == (0, {}), tally.stories


def test_outlast_that_was_asked_for_less_keeps_less() -> None:
    """What doctor says of durability=process is what the cut does."""
    assert sweep("outlast-process", rounds=4, seed=1).lost > 0
