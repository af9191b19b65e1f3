"""A slice of the rig: killed at each write of a job, and by lot over many; one effect each."""

from __future__ import annotations

import pytest
from tests.proof.deeds import take_deeds


@pytest.mark.timeout(600)
def test_a_kill_at_each_write_of_a_job_with_steps_and_a_transaction() -> None:
    deeds = take_deeds(1000, seed=1, sweep=1)
    assert deeds.broken == {}, "\n\n".join(deeds.stories)
    assert deeds.killed >= 20
    assert deeds.effects == deeds.acknowledged > deeds.killed, "it never came to the last write"
    assert deeds.repeated > 0, "kills that interrupt no step prove nothing"


@pytest.mark.timeout(600)
def test_kills_by_lot_over_many_jobs() -> None:
    deeds = take_deeds(40, seed=1)
    assert deeds.broken == {}, "\n\n".join(deeds.stories)
    assert deeds.killed >= 15
    assert deeds.effects == deeds.acknowledged


@pytest.mark.needs("servers")
@pytest.mark.timeout(600)
def test_a_kill_at_writes_to_postgresql() -> None:
    """Each tenth of them here; ``python -m tests.proof.deeds --postgres --sweep 1`` takes all."""
    deeds = take_deeds(1000, seed=1, sweep=10, server="postgres")
    assert deeds.broken == {}, "\n\n".join(deeds.stories)
    assert deeds.killed >= 15
    assert deeds.effects == deeds.acknowledged > deeds.killed, "it never came to the last write"
    assert deeds.repeated > 0, "kills that interrupt no step prove nothing"


@pytest.mark.needs("servers")
@pytest.mark.timeout(600)
def test_kills_by_lot_on_postgresql() -> None:
    deeds = take_deeds(15, seed=1, server="postgres")
    assert deeds.broken == {}, "\n\n".join(deeds.stories)
    assert deeds.killed >= 8
    assert deeds.effects == deeds.acknowledged


@pytest.mark.needs("redis")
@pytest.mark.timeout(600)
def test_a_kill_at_calls_of_redis() -> None:
    """Rows elsewhere, with an inbox. All: ``python -m tests.proof.deeds --redis --sweep 1``."""
    deeds = take_deeds(1000, seed=1, sweep=3, server="redis")
    assert deeds.broken == {}, "\n\n".join(deeds.stories)
    assert deeds.killed >= 5
    assert deeds.effects == deeds.acknowledged > deeds.killed, "it never came to the last write"
    assert deeds.repeated > 0, "kills that interrupt no step prove nothing"
