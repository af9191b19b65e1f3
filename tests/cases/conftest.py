"""The rig of the cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.cases.rig import FULL, Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/cases/" in str(item.path):
            item.add_marker(pytest.mark.timeout(3600 if FULL else 360))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()
