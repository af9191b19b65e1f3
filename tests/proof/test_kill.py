"""Processes killed at random moments and at each system call: nothing is lost, nothing undone."""

from __future__ import annotations

import pytest
from tests.proof.calls import sweep
from tests.proof.fleet import take_fleet_toll
from tests.proof.kill import take_toll
from tests.proof.recovery import take_recovery


@pytest.mark.timeout(360)
def test_a_thousand_forks_killed_at_random_moments() -> None:
    toll = take_toll(1000, seed=1)
    assert toll.rounds == 1000
    assert toll.acknowledged > 5000
    assert toll.broken == {}, "\n\n".join(toll.stories)


@pytest.mark.needs("cut")
@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    ("acts", "before"),
    [
        (("add_one_by_one",), ()),
        (("claim_and_settle", "settle_every_way"), ("add_many",)),
        (("come_back", "lose_a_worker"), ("add_many",)),
    ],
    ids=["create and add", "claim and settle", "reopen and recover"],
)
def test_a_kill_at_any_call_that_writes(acts: tuple[str, ...], before: tuple[str, ...]) -> None:
    swept = sweep(acts, seed=1, before=before, most=12)
    assert swept.hit >= 8
    assert swept.broken == {}, "\n\n".join(swept.stories)


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_three_hundred_kills_of_real_workers_and_producers() -> None:
    toll = take_fleet_toll(300, seed=1)
    assert toll.rounds == 300
    assert toll.acknowledged > 600
    assert toll.explained > 50, "kills that interrupt nothing prove nothing"
    assert toll.broken == {}, "\n\n".join(toll.stories)


@pytest.mark.alone
@pytest.mark.timeout(360)
def test_a_killed_workers_job_starts_again_long_before_its_lease_ends() -> None:
    """Within a second, says the bench; here the machine may be busy, and a lease lasts 15 s."""
    toll = take_recovery(10, seed=1)
    assert toll.broken == {}, "\n\n".join(toll.stories)
    assert toll.explained == 10
    # Far less than a lease, and as much more as a busy machine takes for any first start.
    assert toll.start_worst > 0
    assert toll.recovery_worst <= 5.0 + 2 * toll.start_worst
