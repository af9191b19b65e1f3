"""The rig of the tests with real Celery workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.contrib.kombu.rig import Rig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.close()
