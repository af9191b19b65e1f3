"""An hour of jobs that come and go on a PostgreSQL of our own: no table may grow meanwhile.

``python -m tests.proof.bloat --budget 3600``. As many jobs are queued at the end as at the
beginning, and what ended is kept for seconds; so the tables are to be as large in the last quarter
of the time as in the second. Autovacuum looks once a minute, as it does where nobody sets it.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
from tests.servers import PostgresServer

from outlast.clock import SystemClock
from outlast.job import Failure, Job, done, retry
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["come_and_go", "grown"]

BACKLOG = 2000
BATCH = 50
KEEP = 20.0
RATE = 400.0
"""Jobs a second, at most. What a busy machine was late with is not made up for: that would be a
burst, in which more has ended than before and is kept."""
LOOKS = 80
"""How often the tables are measured, in the whole of the time."""
SLACK = 2 << 20
"""Bytes that are no bloat yet: half a minute of jobs, when a vacuum comes late."""
SIZES = """
SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n
ON n.oid = c.relnamespace WHERE n.nspname = 'outlast' AND c.relkind = 'r' ORDER BY c.relname
"""


async def come_and_go(server: PostgresServer, seconds: float) -> dict[str, object]:
    """Jobs of all kinds, at a steady rate; what came of them, and of the tables."""
    store: Any = connect(server.url())
    await store.open()
    connection = await asyncpg.connect(server.url())
    clock = SystemClock()
    names = itertools.count()
    began = due = clock.monotonic()
    sizes: list[dict[str, int]] = []
    settled = tended = 0
    try:
        for _ in range(BACKLOG // BATCH):
            await store.add(_jobs(names))
        while (passed := clock.monotonic() - began) < seconds:
            await store.add(_jobs(names))
            claims = await store.claim(["default"], [None, "t"], BATCH + BATCH // 10, 60.0, "w")
            assert not await store.renew(claims, 300.0)
            verdicts = [
                retry(claim, 0.2, Failure(kind="error"))
                if n % 10 == 5 and claim.job.failures == 0
                else done(claim, b"1")
                for n, claim in enumerate(claims)
            ]
            assert not await store.settle(verdicts)
            settled += len(claims)
            if passed >= tended:  # each second, as a worker does
                tended += 1
                await store.recover(100)
                await store.prune(1000)
            if passed >= seconds * len(sizes) / LOOKS:
                sizes.append(dict(await connection.fetch(SIZES)))
            due = max(due + len(claims) / RATE, clock.monotonic())
            await clock.sleep(due - clock.monotonic())
        queued = (await store.depth("default")).ready
    finally:
        await connection.close()
        await store.close()
    tables, stories = grown(sizes)
    return {
        "settled": settled,
        "queued": queued,
        "tables": tables,
        "broken": {"grown": len(stories)} if stories else {},
        "stories": stories,
    }


def _jobs(names: itertools.count[int]) -> list[Job]:
    """What most are, some of a task with a key, and some that come a little later."""
    made = []
    for n in range(BATCH):
        id_ = f"j{next(names)}"
        if n % 10 == 0:
            made.append(Job(id=id_, keep=KEEP, task="t", key=id_, keep_key=KEEP, max_attempts=9))
        elif n % 10 == 1:
            made.append(Job(id=id_, keep=KEEP, delay=0.5, max_attempts=9))
        else:
            made.append(Job(id=id_, keep=KEEP, max_attempts=9))
    return made


def grown(sizes: Sequence[Mapping[str, int]]) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """How large each table was at most in the second and in the last quarter; which have grown."""
    quarter = len(sizes) // 4
    early, late = sizes[quarter : 2 * quarter], sizes[-quarter:]
    tables = {
        name: (max(each[name] for each in early), max(each[name] for each in late))
        for name in sizes[-1]
    }
    stories = [
        f"{name} grew from {before:,} to {after:,} bytes"
        for name, (before, after) in tables.items()
        if after > before * 1.5 + SLACK
    ]
    return tables, stories


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds")
    told = parser.parse_args()
    server = PostgresServer(autovacuum_naptime="1min")
    server.start()
    try:
        found = asyncio.run(come_and_go(server, told.budget))
    finally:
        server.remove()
    print(msgspec.json.encode({**found, "seed": told.seed}).decode())


if __name__ == "__main__":
    main()
