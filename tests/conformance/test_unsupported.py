"""What each store can't do, word for word: a new entry fails here until somebody means it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.conftest import KINDS, RECORDED

from outlast.errors import Unsupported
from outlast.store import Feature

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore

UNSUPPORTED: dict[str, set[str]] = {
    "memory": {"JOIN", "PROMPT", "backup"},
    "sqlite": set(),
    "postgresql": {"backup"},
    "redis": {"JOIN", "PROMPT", "backup"},
    "rabbitmq": {
        "ORDER",
        "KEYS",
        "REPEATS",
        "RESULTS",
        "INSPECT",
        "LANES",
        "CAPACITY",
        "STEPS",
        "JOIN",
        "PROMPT",
        "backup",
    },
}


UNSUPPORTED |= {
    "rabbitmq+memory": {"JOIN", "PROMPT", "backup"},
    "rabbitmq+sqlite": {"PROMPT"},
    "rabbitmq+postgresql": {"PROMPT", "backup"},
    "rabbitmq+redis": {"JOIN", "PROMPT", "backup"},
}


def test_every_store_has_its_entry() -> None:
    assert set(UNSUPPORTED) == {*KINDS, *RECORDED}


async def test_features(place: Place, store: FullStore) -> None:
    before = place.connect().features
    assert store.features == before, "features are known before open"
    missing = {feature.name for feature in Feature if feature not in store.features}
    assert missing == UNSUPPORTED[place.kind] - {"backup"}


async def test_backup(place: Place, store: FullStore, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    if "backup" in UNSUPPORTED[place.kind]:
        with pytest.raises(Unsupported, match="sqlite:///"):
            await store.backup(copy)
        assert not copy.exists()
    else:
        await store.backup(copy)
        assert copy.stat().st_size > 0
