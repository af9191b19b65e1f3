"""What a killed process of the simulation leaves behind is meant to be left behind."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# A process that is killed never comes to what it was about to await.
LEFT = "ignore:coroutine .* was never awaited:RuntimeWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(LEFT))


@pytest.fixture(autouse=True)
def _bury_the_killed() -> Iterator[None]:
    """Here, and not in the middle of a later test that has nothing to do with it."""
    yield
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
        gc.collect()
