"""Where a Redis server is: sentinels say it, also after a failover."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.servers import REDIS_SERVER, RedisServer, free_port
from tests.stores.test_redis import job, opened, take

from outlast.errors import ConfigurationError, OutlastError, StoreUnavailable
from outlast.stores import connect
from outlast.stores.redis.address import read

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs("redis")
SECRET = "S3cr3t!pw"


class SentinelServer(RedisServer):
    """Watches one server, alone, and makes its replica the master when it is away."""

    name = "sentinel"

    def __init__(self, master: RedisServer, password: str) -> None:
        super().__init__()
        self.configuration = str(self.folder / "sentinel.conf")
        (self.folder / "sentinel.conf").write_text(
            f"port {self.port}\ndir {self.folder}\nbind 127.0.0.1\nrequirepass {password}\n"
            f"sentinel monitor jobs 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds jobs 300\nsentinel failover-timeout jobs 3000\n"
        )

    def command(self) -> list[str]:
        return [REDIS_SERVER, self.configuration, "--sentinel"]


@pytest.fixture
def servers() -> Iterator[list[RedisServer]]:
    """Those that a test has made; removed at its end."""
    made: list[RedisServer] = []
    yield made
    for server in made:
        server.remove()


async def test_a_failover_that_a_sentinel_decides(servers: list[RedisServer]) -> None:
    at_once = {"repl-diskless-sync-delay": "0"}
    master, replica = (RedisServer(appendfsync="always", **at_once) for _ in range(2))
    sentinel = SentinelServer(master, SECRET)
    servers += [master, replica, sentinel]
    master.start()
    replica.start()
    replica.say("REPLICAOF", "127.0.0.1", str(master.port))
    async with asyncio.timeout(60):
        while b"state=online" not in master.say("INFO", "replication"):
            pass
        sentinel.start()
        while b"slaves=1" not in say_to(sentinel, "INFO sentinel"):
            pass
    deaf = free_port()  # the first of them is away
    hosts = f"127.0.0.1:{deaf},127.0.0.1:{sentinel.port}"
    url = f"redis://{hosts}/0?sentinel=jobs&sentinel_password={SECRET}"
    assert SECRET not in read(url).shown
    async with opened(url) as store:
        before = [job() for _ in range(100)]
        await store.add(before)
        async with asyncio.timeout(60):
            while replica.say("XLEN", "{outlast:default}t") != b":100\r\n":
                pass
        waiter = asyncio.ensure_future(store.wait(["elsewhere"], 1e6))
        master.kill()
        late = job(queue="elsewhere")
        async with asyncio.timeout(60):
            while True:
                try:
                    await store.add([late])
                    break
                except OutlastError:
                    continue
            await waiter
        assert {claim.job.id for claim in await take(store, 1000)} == {each.id for each in before}
        assert replica.say("ROLE").startswith(b"*3\r\n$6\r\nmaster")


async def test_no_sentinel_answers() -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}/0?sentinel=jobs"
    with pytest.raises(StoreUnavailable, match="none of them answers") as caught:
        await connect(url).open()
    assert SECRET not in str(caught.value)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match="sentinel_pass"):
        connect("redis://host/0?sentinel=jobs&sentinel_pass=x")


def say_to(sentinel: RedisServer, command: str) -> bytes:
    """The sentinel wants its password first."""
    with closing(socket.create_connection(("127.0.0.1", sentinel.port), 10)) as line:
        line.settimeout(30)
        line.sendall(f"AUTH {SECRET}\r\n".encode())
        line.recv(100)
        line.sendall(f"{command}\r\n".encode())
        return line.recv(65536)
