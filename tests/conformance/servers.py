"""The PostgreSQL server of one test process, emptied between its tests."""

from __future__ import annotations

import asyncpg
from tests.postgres import Server

__all__ = ["empty", "remove", "shared"]

_EMPTY = """
DO $$ DECLARE name text; used boolean; BEGIN
    FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
        WHERE schemaname LIKE 'outlast%' AND tablename <> 'meta' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO used;
        IF used THEN EXECUTE 'TRUNCATE ' || name; END IF;
    END LOOP;
END $$
"""

_servers: list[Server] = []


def shared() -> Server:
    """Started when the first test needs it."""
    if not _servers:
        server = Server()
        _servers.append(server)
        server.start()
    return _servers[0]


def remove() -> None:
    while _servers:
        _servers.pop().remove()


async def empty(server: Server) -> None:
    """Forget all jobs; the tables stay."""
    connection = await asyncpg.connect(server.url())
    try:
        await connection.execute(_EMPTY)
    finally:
        await connection.close()
