"""The rig of the cases."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from tests.cases.rig import FULL, Rig
from tests.servers import PostgresServer, shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/cases/" in str(item.path):
            item.add_marker(pytest.mark.timeout(3600 if FULL else 360))


@pytest.fixture
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    url = None
    if getattr(request, "param", "sqlite") == "postgresql":
        url = shared(PostgresServer).url(schema=f"case{next(_numbers)}")
    made = Rig(tmp_path, url)
    yield made
    made.close()
