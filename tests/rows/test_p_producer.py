"""P: a producer that gives up in the middle, sends what can't be sent, or sends without end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.rows.memory import peak
from tests.stores.children import Child, say

from outlast import Outlast
from outlast.access import ledger_of
from outlast.errors import EncodeError
from outlast.store import Durability
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path


def shop(path: Path) -> Outlast:
    app = Outlast(f"sqlite:///{path}")

    @app.task(name="keep")
    async def keep(what: Any) -> None: ...

    return app


async def stored(app: Outlast) -> int:
    return sum(line.depth.live for line in await ledger_of(app.store).lines())


async def test_p3_given_up_in_the_middle_all_or_none_is_stored_and_the_ids_are_known(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path / "jobs.db") as app:
        other = apsw.Connection(str(tmp_path / "jobs.db"))
        for n, seconds in enumerate((0.0, 0.001, 0.1)):
            calls = [app.tasks["keep"].call(f"{n} {i}") for i in range(20)]
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(seconds):
                    await app.enqueue_many(calls)
            other.execute("ROLLBACK")
            again = await app.enqueue_many(calls)
            assert [handle.id for handle in again] == [call.job.id for call in calls]
            assert len({handle.created for handle in again}) == 1, "half a batch"
            assert await stored(app) == 20 * (n + 1)
        other.close()


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, str]] = {
    "giant": ("x" * (1 << 20), "limit of 1048576"),
    "deep": (nested(65), "64"),
    "bottomless": (nested(100_000), "64"),
    "an object": (object(), "object"),
    "not a number": (float("nan"), "nan|finite"),
    "without end": ([1.0, float("-inf")], "inf|finite"),
    "half a letter": ("\ud800", "surrogate|UTF-8|utf-8"),
    "bytes": (b"x", "bytes"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_p7_what_can_not_be_kept_is_refused_before_anything_is_stored(
    tmp_path: Path, what: str
) -> None:
    value, says = REFUSED[what]
    async with shop(tmp_path / "jobs.db") as app:
        keep = app.tasks["keep"]
        with pytest.raises(EncodeError, match=f"keep.*({says})"):
            await keep.enqueue(value)
        with pytest.raises(EncodeError):
            await app.enqueue_many([keep.call("fine"), keep.call(value)])
        assert await stored(app) == 0
        await keep.enqueue("x" * 1_000_000)


FLOOD = 400
AT_ONCE = 100


def flood(path: str) -> None:
    """In a child: a hundred producers at once, as fast as they are answered."""
    app = Outlast(f"sqlite:///{path}?durability=process")

    @app.task(name="keep")
    async def keep(what: str) -> None: ...

    async def produce() -> None:
        for _ in range(FLOOD // 4):
            await keep.enqueue("x" * 1000)

    async def run() -> None:
        async with app:
            say(peak())
            for _ in range(4):
                await asyncio.gather(*(produce() for _ in range(AT_ONCE)))
                say(peak())

    asyncio.run(run())


def test_p8_a_flood_waits_for_the_disk_and_not_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with Child(flood, path=str(path)) as child:
        before, first, *_, last = (child.hear(40) for _ in range(5))
        child.end()
    store = SqliteStore(str(path), durability=Durability.PROCESS)
    store.open_now()
    assert store.depth_now("default").live == FLOOD * AT_ONCE
    store.close_now()
    # Forty thousand jobs of 1 KiB are 40 MB; in KiB.
    assert last - before < 30_000
    assert last - first < 8_000, "three quarters of them cost no more than the first quarter"
