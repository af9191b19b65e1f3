"""Namespaces on one file: whoever works in one neither sees nor touches what is in another."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.stores.test_sqlite_counts import IDS, Game, acts, any_act, findings

from outlast.job import Failure, Job, dead, done
from outlast.store import WorkerInfo

if TYPE_CHECKING:
    from collections.abc import Iterable

    from outlast.stores.sqlite.store import SqliteStore

HERS = b'"of the other namespace"'


async def furnish(store: SqliteStore) -> None:
    """The other namespace: the same ids, keys, lanes, queues, tasks and workers, in all states."""
    kinds: list[dict[str, Any]] = [
        {"lane": "x"},
        {"key": "k", "digest": b"other", "lane": "x"},
        {"delay": 5.0},
        {"ttl": 8.0, "key": "l"},
        {"priority": 5, "keep": 1.0},
        {"keep": 0.0},
    ]
    jobs = [
        Job(id=id, queue=queue, task="t", payload=HERS, **more)
        for id, queue, more in zip(IDS, "ababab", kinds, strict=True)
    ]
    await store.add(jobs)
    await store.add([Job(id=f"more-{n}", queue="a", task="t", payload=HERS) for n in range(4)])
    # In every stage, and of every kind of time that may pass.
    late = [Job(id=f"ttl-{n}", queue="b", task="u", payload=HERS, ttl=3.0 * n) for n in range(1, 9)]
    await store.add(late)
    claims = await store.claim(["a", "b"], ["t"], 5, 9, "w1")
    assert len(claims) == 5
    await store.settle([done(claims[0]), dead(claims[1], Failure(kind="error"))])
    await store.pause("b")
    await store.beat(WorkerInfo(id="w1", host="h", pid=1))


async def looks(store: SqliteStore) -> list[Any]:
    return [await store.find(limit=1000), await store.lines(), await store.workers()]


async def play(folder: Path, script: Iterable[tuple[Any, ...]]) -> None:
    (folder / "alone").mkdir()
    (folder / "shared").mkdir()
    alone, shared = Game(folder / "alone", ["one"]), Game(folder / "shared", ["one", "two"])
    await alone.open()
    await shared.open()
    mine, hers = shared.stores
    await furnish(hers)
    for act in script:
        if act[0] == "later":
            await alone.do(0, act)
            await shared.do(0, act)
            continue
        before = await looks(hers)
        assert await shared.do(0, act) == await alone.do(0, act), f"{act} saw the other namespace"
        assert await looks(hers) == before, f"{act} touched the other namespace"
        assert await looks(mine) == await looks(alone.stores[0])
        assert not any(job.payload == HERS for job in await mine.find(limit=1000))
        for game in (alone, shared):
            del game.claims[0][:-10]
    await alone.close()
    await shared.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
async def test_nor_does_any_in_a_long_game(tmp_path: Path, seed: int) -> None:
    """The neighbour's jobs come due, expire and outlive their time meanwhile, untouched."""
    dice = random.Random(seed)
    await play(tmp_path, (any_act(dice) for _ in range(250)))


@pytest.mark.timeout(240)
@given(st.lists(acts, min_size=5, max_size=20))
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
def test_no_call_sees_or_touches_another_namespace(script: list[tuple[Any, ...]]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="outlast-test-"))
    try:
        asyncio.run(play(folder, script))
        assert findings(str(folder / "shared" / "jobs.db")) == []
    finally:
        shutil.rmtree(folder)
