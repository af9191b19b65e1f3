"""How often the Redis store asks the server, for what, and by whose clock."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from tests.stores.test_redis import job, opened, take
from tests.stores.test_redis import server as server
from tests.stores.test_redis import shared as shared

from outlast.clock import SystemClock
from outlast.job import Death, done
from outlast.stores.redis.scripts import texts

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tests.servers import RedisServer

pytestmark = pytest.mark.needs("redis")


def asked(server: RedisServer) -> Counter[str]:
    """Commands since the last time; those of scripts are among them."""
    found = server.say("INFO", "commandstats").decode()
    server.say("CONFIG", "RESETSTAT")
    return Counter({name: int(n) for name, n in re.findall(r"cmdstat_(\S+?):calls=(\d+)", found)})


async def test_one_call_an_operation_and_batch(server: RedisServer) -> None:
    async with opened(server.url()) as store:
        jobs = [job() for _ in range(100)]
        ids = [each.id for each in jobs]

        async def calls(work: Awaitable[object]) -> int:
            asked(server)
            await work
            return asked(server)["evalsha"]

        assert await calls(store.add(jobs)) == 1
        assert await calls(store.get(ids)) == 1
        claims = await take(store, 100)
        assert await calls(store.renew(claims, 60.0)) == 1
        assert await calls(store.recover_worker("w", Death(started=frozenset()))) == 1
        assert await calls(take(store, 60)) == 1
        assert await calls(store.cancel(ids)) == 1
        assert await calls(store.revive(ids)) == 1
        claims = await take(store, 100)
        assert await calls(store.settle([done(claim) for claim in claims])) == 1
        for work in (store.depth("default"), store.lines(), store.prune(10), store.recover(10)):
            assert await calls(work) == 1


async def test_scripts_are_loaded_once(server: RedisServer) -> None:
    server.say("SCRIPT", "FLUSH")
    asked(server)
    for _ in range(3):
        async with opened(server.url()) as store:
            await store.add([job()])
    assert asked(server)["script|load"] == len(texts())


def test_no_script_looks_through_all_keys() -> None:
    for text in texts().values():
        assert not re.search(r"""['"](KEYS|SCAN|SORT|FLUSH\w*|RANDOMKEY)['"]""", text)


class Wrong(SystemClock):
    """A machine's clock that goes a day wrong."""

    now = staticmethod(lambda: time.time() + 86400.0)
    monotonic = staticmethod(lambda: time.monotonic() + 86400.0)


async def test_due_times_and_leases_go_by_the_clock_of_the_server(server: RedisServer) -> None:
    async with opened(server.url(), clock=Wrong()) as ahead, opened(server.url()) as store:
        later, soon = job(delay=3600.0), job(ttl=3600.0)
        await store.add([later, soon])
        [claim] = await take(ahead)
        assert claim.job.id == soon.id
        assert await ahead.recover(10) == 0
        assert await ahead.prune(10) == 0
        assert claim.job.started_at is not None
        assert abs(claim.job.started_at - float(server.say("TIME").split(b"\r\n")[2])) < 3600
