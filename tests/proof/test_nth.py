"""One operation on the files fails, at every turn: no false answer, and the store serves again."""

from __future__ import annotations

import pytest
from tests.proof.nth import ENDLESS_LOOPS, Loop, sweep

ACTS = ("add_one_by_one", "add_keyed", "claim_and_settle", "settle_every_way", "come_back")


def named(loop: Loop) -> str:
    return f"{loop.kind}-{loop.flavour}-{'for good' if loop.sticky else 'once'}"


@pytest.mark.timeout(360)
@pytest.mark.parametrize("loop", ENDLESS_LOOPS, ids=named)
def test_an_operation_that_fails_gives_no_false_answer(loop: Loop) -> None:
    often = loop.kind in ("write", "read")
    found = sweep(ACTS, seed=1, loops=[loop], stride=6 if often else 1)
    assert found.points > 0
    assert found.broken == {}, found.stories


@pytest.mark.timeout(240)
def test_failed_syncs_are_never_acknowledged() -> None:
    """A sync that failed once may seem to succeed the next time: its data is gone all the same."""
    acts = ("add_one_by_one", "claim_and_settle", "add_one_by_one")
    found = sweep(acts, seed=1, loops=[Loop("sync", "io", sticky=False)])
    assert found.points > 10
    assert found.errors > 10
    assert found.broken == {}, found.stories
