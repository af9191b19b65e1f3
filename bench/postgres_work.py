"""What bench/postgres_bench.py runs in processes of their own: ours, a bare loop, and two peers.

``outlast worker bench.postgres_work:app``, or ``python -m bench.postgres_work PEER [JOBS]``: a
worker of ``raw``, ``pgqueuer`` or ``oban``, or what makes its tables and so many jobs in them.
"""

from __future__ import annotations

import asyncio
import os
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from outlast import Outlast
from outlast.cli.bench_work import FOLDER, count

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DSN = "OUTLAST_BENCH_DSN"
PAYLOAD = "N" + "x" * 99
BATCH = 100

app = Outlast(os.environ.get(DSN, "postgresql://localhost/nowhere"))

RAW_TABLES = (
    "CREATE TABLE q (id bigserial PRIMARY KEY, state int NOT NULL DEFAULT 0, payload text NOT NULL)"
    "; CREATE INDEX q_ready ON q (id) WHERE state = 0"
)
RAW_ONE = "INSERT INTO q (payload) VALUES ($1)"
RAW_MANY = "INSERT INTO q (payload) SELECT unnest($1::text[])"
RAW_TAKE = (
    "WITH d AS (DELETE FROM q WHERE id = ANY($2::bigint[])), n AS (SELECT id FROM q WHERE state = 0"
    " ORDER BY id LIMIT $1::int FOR UPDATE SKIP LOCKED) UPDATE q SET state = 1 FROM n"
    " WHERE q.id = n.id RETURNING q.id, q.payload"
)
"""The batch before is deleted and the next one claimed, in one statement and one commit."""


@app.task(name="noop")
async def noop(payload: str) -> None:
    count()


@app.task(name="ping")
async def ping(sent: float) -> None:
    """Say when it began, on the machine's monotonic clock, which all processes share."""
    began = time.monotonic()
    with Path(os.environ[FOLDER], "pings").open("ab", buffering=0) as file:
        file.write(struct.pack("<dd", sent, began))


async def raw() -> None:
    connection = await asyncpg.connect(os.environ[DSN])

    async def nothing(payload: str) -> None:
        count()

    done: list[int] = []
    while True:
        rows = await connection.fetch(RAW_TAKE, BATCH, done)
        done = []
        for number, payload in rows:
            await nothing(payload)
            done.append(number)
        if not rows:
            await asyncio.sleep(0.002)


async def fill_raw(jobs: int) -> None:
    connection = await asyncpg.connect(os.environ[DSN])
    await connection.execute(RAW_TABLES)
    await connection.execute(RAW_MANY, [PAYLOAD] * jobs)
    await connection.close()


async def pgqueuer() -> None:
    from pgqueuer import AsyncpgDriver, PgQueuer

    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(os.environ[DSN])))

    @queuer.entrypoint("noop")
    async def nothing(job: Any) -> None:
        count()

    await queuer.run(batch_size=BATCH)


async def fill_pgqueuer(jobs: int) -> None:
    from pgqueuer import AsyncpgDriver, Queries

    connection = await asyncpg.connect(os.environ[DSN])
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for _ in range(0, jobs, 1000):
        await queries.enqueue(["noop"] * 1000, [PAYLOAD.encode()] * 1000, [0] * 1000)
    await connection.close()


def _oban() -> tuple[Any, Any, Any]:
    from oban import Oban, worker
    from psycopg_pool import AsyncConnectionPool

    @worker(queue="bench")
    class Nothing:
        async def process(self, job: Any) -> None:
            count()

    pool = AsyncConnectionPool(os.environ[DSN], min_size=4, max_size=10, open=False)
    return Oban, Nothing, pool


async def oban() -> None:
    kind, _, pool = _oban()
    async with pool:
        await kind(pool=pool, queues={"bench": BATCH}).start()
        await asyncio.Event().wait()


async def fill_oban(jobs: int) -> None:
    import psycopg
    from oban.schema import install_sql

    with psycopg.connect(os.environ[DSN], autocommit=True) as connection:
        connection.execute(install_sql())
    kind, nothing, pool = _oban()
    async with pool:
        producer = kind(pool=pool, name="producer")
        for _ in range(0, jobs, 500):
            await producer.enqueue_many([nothing.new({"p": PAYLOAD}) for _ in range(500)])


WORKERS: dict[str, Callable[[], Awaitable[None]]] = {
    "raw": raw,
    "pgqueuer": pgqueuer,
    "oban": oban,
}
FILLS: dict[str, Callable[[int], Awaitable[None]]] = {
    "raw": fill_raw,
    "pgqueuer": fill_pgqueuer,
    "oban": fill_oban,
}


async def main(peer: str, jobs: int | None) -> None:
    await (WORKERS[peer]() if jobs is None else FILLS[peer](jobs))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None))
