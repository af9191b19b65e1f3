"""What the engine's tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.engine.rig import Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with rig.app:
        yield rig
