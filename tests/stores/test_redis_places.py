"""Where a Redis server is: sentinels say it, or the nodes of a cluster, also after a failover."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from tests.proof.patience import until
from tests.servers import REDIS_SERVER, RedisServer, free_port
from tests.stores.test_redis import job, opened, take
from tests.stores.test_redis_calls import connections

from outlast.doctor import examine
from outlast.errors import ConfigurationError, OutlastError, StoreUnavailable
from outlast.job import done
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.redis import engine
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


def node(**settings: str) -> RedisServer:
    """Of a cluster, which holds a replica for lost after a second."""
    return RedisServer(
        appendfsync="always", cluster_enabled="yes", cluster_port=str(free_port()),
        cluster_node_timeout="1000", cluster_replica_validity_factor="0",
        repl_diskless_sync_delay="0", **settings,
    )  # fmt: skip


def make_cluster(servers: list[RedisServer], count: int) -> list[RedisServer]:
    """Three masters, and so many nodes in all."""
    nodes = [node() for _ in range(count)]
    servers += nodes
    for n, each in enumerate(nodes):
        each.start()
        if n < 3:
            each.say("CLUSTER", "ADDSLOTSRANGE", str(n * 5461), str((5460, 10921, 16383)[n]))
    for each in nodes[1:]:
        port, bus = str(each.port), each.settings["cluster-port"]
        nodes[0].say("CLUSTER", "MEET", "127.0.0.1", port, bus)
    until(lambda: all(is_whole(each, count) for each in nodes), 60, "the nodes are a cluster")
    return nodes


def is_whole(node: RedisServer, count: int) -> bool:
    said = node.say("CLUSTER", "INFO")
    return b"cluster_state:ok" in said and b"cluster_known_nodes:%d\r" % count in said


async def test_a_cluster_of_three_nodes(servers: list[RedisServer]) -> None:
    nodes = make_cluster(servers, 3)
    for name in ("a", "b", "c", "d", "e"):
        async with opened(nodes[0].url(), namespace=name) as store:
            await store.add([job(lane="l", key="k"), job(delay=9), job(ttl=9, priority=3)])
            claims = await take(store)
            assert len(claims) == 2
            assert list(await store.settle([done(claim) for claim in claims])) == []
    sizes = [int(each.say("DBSIZE")[1:]) for each in nodes]
    assert sum(size > 0 for size in sizes) > 1, sizes


async def test_a_slot_that_moves_to_another_node(
    servers: list[RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it does, each call is refused: no node has all of its keys."""
    nodes = make_cluster(servers, 3)
    slot = nodes[0].say("CLUSTER", "KEYSLOT", "{outlast:default}")[1:].decode().strip()
    old = nodes[int(slot) // 5461]
    new = next(node for node in nodes if node is not old)
    names = [str(node.say("CLUSTER", "MYID").split(b"\r\n")[1], "ascii") for node in (old, new)]
    async with opened(nodes[0].url()) as store, asyncio.timeout(60):
        jobs = [job() for _ in range(20)]
        await store.add(jobs)
        monkeypatch.setattr(engine, "PATIENCE", 0.3)
        new.say("CLUSTER", "SETSLOT", slot, "IMPORTING", names[0])
        old.say("CLUSTER", "SETSLOT", slot, "MIGRATING", names[1])
        before = connections(old)
        late = job()
        with pytest.raises(StoreUnavailable, match="is moving to"):
            await store.add([late])
        assert connections(old) - before < 50
        while not (keys := old.say("CLUSTER", "GETKEYSINSLOT", slot, "1000")).startswith(b"*0"):
            moved = keys.decode("latin1").split("\r\n")[2::2]
            hand_over(old, new, moved)
            with pytest.raises(StoreUnavailable, match="is moving to"):
                await store.add([late])
        monkeypatch.undo()
        for node in (new, old):
            node.say("CLUSTER", "SETSLOT", slot, "NODE", names[1])
        async with asyncio.timeout(60):
            while True:
                try:
                    await store.add([late])
                    break
                except StoreUnavailable:
                    continue
        claims = await take(store, 1000)
        assert {claim.job.id for claim in claims} == {each.id for each in (*jobs, late)}


def hand_over(old: RedisServer, new: RedisServer, keys: list[str]) -> None:
    """Some of them hold bytes that no plain command could name."""
    command = ["MIGRATE", "127.0.0.1", str(new.port), "", "0", "5000", "KEYS", *keys]
    parts = [part.encode("latin1") for part in command]
    data = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts)
    with socket.create_connection(("127.0.0.1", old.port), 10) as line:
        line.settimeout(30)
        line.sendall(data)
        assert line.recv(1000).startswith(b"+OK")


async def test_a_failover_in_a_cluster(servers: list[RedisServer]) -> None:
    """The node that has the jobs dies, and it is the first that the URL names."""
    *masters, replica = make_cluster(servers, 4)
    slot = int(masters[0].say("CLUSTER", "KEYSLOT", "{outlast:default}")[1:])
    owner = masters.pop(slot // 5461)
    owner_id = owner.say("CLUSTER", "MYID").split(b"\r\n")[1].decode()
    replica.say("CLUSTER", "REPLICATE", owner_id)
    until(lambda: b"state=online" in owner.say("INFO", "replication"), 60, "it follows")
    until(
        lambda: all(is_known_replica(each, replica) for each in masters), 60, "the others know it"
    )
    hosts = f"127.0.0.1:{owner.port},127.0.0.1:{masters[0].port}"
    async with opened(f"redis://{hosts}/0") as store:
        before = [job() for _ in range(100)]
        await store.add(before)
        until(
            lambda: replica.say("INFO", "replication").count(b"master_link_status:up") == 1
            and offset_of(replica, b"slave_repl_offset") >= offset_of(owner, b"master_repl_offset"),
            60, "it has all",
        )  # fmt: skip
        owner.kill()
        late = job()
        async with asyncio.timeout(60):
            while True:
                try:
                    await store.add([late])
                    break
                except OutlastError:
                    continue
        claims = await take(store, 1000)
        assert {claim.job.id for claim in claims} == {each.id for each in (*before, late)}
    owner.start()
    until(lambda: b"role:slave" in owner.say("INFO", "replication"), 60, "it is a replica now")
    async with opened(owner.url()) as store:
        assert (await store.depth("default")).running == 101
    assert (await examine(owner.url())).accepted is Durability.POWER


def is_known_replica(node: RedisServer, replica: RedisServer) -> bool:
    return any(
        b":%d@" % replica.port in line and b"slave" in line
        for line in node.say("CLUSTER", "NODES").splitlines()
    )


def offset_of(server: RedisServer, name: bytes) -> int:
    return int(server.say("INFO", "replication").split(name + b":")[1].split(b"\r")[0])


def test_what_a_url_with_several_nodes_says() -> None:
    found = read("redis://user:a,b@one:7000,two/3")
    assert found.nodes == [("one", 7000), ("two", 6379)]
    assert found.shown == "redis://user@one:7000,two/3"
    assert (found.settings["password"], found.settings["db"]) == ("a,b", 3)
    assert not read("redis://user:a,b@one:7000/3").nodes
    with pytest.raises(ConfigurationError, match="can't be read"):
        read("redis://one:7000,two:port/3")


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
