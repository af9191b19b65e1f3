"""C29: a cancelled call leaves its answer behind, and the next caller gets somebody else's."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.cases.rig import scaled
from tests.servers import PostgresServer, shared
from tests.stores.proxy import proxied

from outlast.job import Job
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.needs("servers")
async def test_c29() -> None:
    server = shared(PostgresServer)
    await calls_are_cancelled(server.port, lambda port: server.url(port=port, schema="c29"))


async def calls_are_cancelled(port: int, url_at: Callable[[int], str]) -> None:
    """On the server at this port; its URL, where it is reached at another."""
    number, delay = scaled((1_000, 0.1), (150, 0.01))
    dice = random.Random(29)
    known = [f"c29-known-{n}" for n in range(100)]
    added: list[list[str]] = []
    cut = 0
    async with proxied(port) as proxy:
        store: Any = connect(url_at(proxy.port))
        await store.open()
        try:
            await store.add([Job(id=id_, payload=id_.encode()) for id_ in known])
            proxy.delay = delay
            for n in range(number):
                try:
                    async with asyncio.timeout(dice.uniform(0, 2 * delay)):
                        if n % 2:
                            await store.get(known)
                        else:
                            added.append([f"c29-{n}-{k}" for k in range(3)])
                            await store.add([Job(id=id_) for id_ in added[-1]])
                except TimeoutError:
                    cut += 1
            proxy.delay = 0.0
            for id_ in known:
                [found] = await store.get([id_])
                assert (found.id, found.payload) == (id_, id_.encode())
            for ids in added:
                there = [job is not None for job in await store.get(ids)]
                assert all(there) or not any(there)
        finally:
            await store.close()
    assert cut > number / 3
