"""A folder that users without rights can reach."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.stores.children import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder of the user that the children become; pytest's own are closed to all but root."""
    folder = Path(tempfile.mkdtemp(prefix="outlast-test-"))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)
