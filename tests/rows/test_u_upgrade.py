"""U: an upgrade while the old version is still at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import job
from tests.stores.children import Child, listen, say

from outlast.errors import SchemaMismatch
from outlast.job import done
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

NEXT = "ALTER TABLE jobs ADD COLUMN colour TEXT"


def upgrade(path: str) -> None:
    """In a child: the version after this one."""
    schema.MIGRATIONS = (*schema.MIGRATIONS, NEXT)
    store = SqliteStore(path)
    store.open_now()
    say([claim.job.id for claim in store.claim_now(["default"], [None], 1, 60.0, "new")])
    listen()
    store.close_now()


async def test_u2_an_old_process_writes_nothing_more_into_a_newer_store(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    store = SqliteStore(str(path))
    await store.open()
    await store.add([job("a"), job("b")])
    (claim,) = await store.claim(["default"], [None], 1, 60.0, "old")
    with Child(upgrade, path=str(path)) as child:
        assert child.hear() == ["b"], "the upgrade waits for nobody, and takes nobody's claim"
        says = f"{path} was brought to schema {len(schema.MIGRATIONS) + 1} by a newer outlast"
        calls = (
            lambda: store.add([job("c")]),
            lambda: store.settle([done(claim)]),
            lambda: store.claim(["default"], [None], 1, 60.0, "old"),
        )
        for call in calls:
            with pytest.raises(SchemaMismatch, match=says):
                await call()
        depth = await store.depth("default")
        assert (depth.running, depth.live) == (2, 2)
        child.end()
    await store.close()
    with pytest.raises(SchemaMismatch):
        await SqliteStore(str(path)).open()
