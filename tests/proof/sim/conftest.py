"""What a killed process of the simulation leaves behind is meant to be left behind."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

HERE = Path(__file__).parent
# A process that is killed never comes to what it was about to await.
LEFT = "ignore:coroutine .* was never awaited:RuntimeWarning"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(LEFT))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Bury them here, and not in the middle of a later test that has nothing to do with it.

    Not in a fixture: until the very end the log of the test may hold an error, and with it the
    frames of whoever was killed.
    """
    result = yield
    if HERE in item.path.parents:  # this hook is called for the tests of all folders
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
            gc.collect()
    return result
