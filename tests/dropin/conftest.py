"""The queues that a drop-in test runs on: asyncio's first, then ours, on each store and mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.dropin.steps import KINDS, OURS, Queues

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=KINDS)
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queues]:
    """Every kind, asyncio's included: what fails there is a wrong test."""
    made = Queues(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=OURS)
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queues]:
    """Every kind of ours, for what asyncio's queues can't do."""
    made = Queues(request.param, tmp_path)
    yield made
    made.close()
