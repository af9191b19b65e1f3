"""Network: lines that are slow, and servers that are none."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from tests.cases.rig import scaled
from tests.proof.patience import linger
from tests.servers import PostgresServer, RabbitServer, RedisServer, Server, shared
from tests.stores.children import Child, say
from tests.stores.proxy import proxied

from outlast import EnqueueUncertain, Outlast, Status, StoreUnavailable
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

ANSWERS = {
    "random bytes": os.urandom(4096),
    "a web page": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "a text without an end": b"$9999999999\r\n" + b"x" * 65536,
    "lists in lists": b"*1\r\n" * 20_000,
    "a message without an end": b"R\x7f\xff\xff\xff" + b"x" * 65536,
    "nothing": b"",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("redis", marks=pytest.mark.needs("redis")),
        pytest.param("postgresql", marks=pytest.mark.needs("servers")),
    ],
)
async def test_n2_on_a_slow_line_all_works_and_takes_its_time(kind: str) -> None:
    """200 ms there and back in full; 40 where time is short, since each call takes some trips."""
    redis = kind == "redis"
    server = shared(RedisServer) if redis else shared(PostgresServer)
    async with proxied(server.port) as line:
        place = f"127.0.0.1:{line.port}"
        url = f"redis://{place}" if redis else f"postgresql://outlast@{place}/postgres"
        app = Outlast(f"{url}?durability=process", namespace="far")

        @app.task(name="double")
        async def double(n: int) -> int:
            return 2 * n

        async with app:
            line.delay = scaled(0.1, 0.02)
            async with app.worker(concurrency=4, lease=5.0):
                handles = await app.enqueue_many([double.call(n) for n in range(8)])
                found = await asyncio.gather(*(each.result(timeout=60) for each in handles))
            assert found == [2 * n for n in range(8)]
            line.delay = 0.0
            jobs = [await each.job() for each in handles]
        assert {(job.status, job.attempt, job.crashes) for job in jobs} == {(Status.DONE, 1, 0)}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("redis", marks=pytest.mark.needs("redis")),
        pytest.param("postgresql", marks=pytest.mark.needs("servers")),
        pytest.param("amqp", marks=pytest.mark.needs("rabbitmq")),
    ],
)
async def test_n1_answers_that_come_byte_by_byte_are_read_as_they_were_meant(kind: str) -> None:
    """Each call is answered in hundreds of pieces, of which none is a whole one."""
    who = {"redis": "", "postgresql": "outlast@", "amqp": "guest:guest@"}[kind]
    where = {"redis": "", "postgresql": "/postgres", "amqp": "/"}[kind]
    servers: dict[str, type[Server]] = {
        "redis": RedisServer, "postgresql": PostgresServer, "amqp": RabbitServer,
    }  # fmt: skip
    async with proxied(shared(servers[kind]).port) as line:
        url = f"{kind}://{who}127.0.0.1:{line.port}{where}?durability=process"
        app = Outlast(url, namespace="drips")
        seen: list[int] = []
        all_seen = asyncio.Event()

        @app.task(name="note")
        async def note(n: int) -> None:
            seen.append(n)
            if len(seen) == 8:
                all_seen.set()

        line.drips = True
        async with app, app.worker(concurrency=4, lease=30.0):
            await app.enqueue_many([note.call(n) for n in range(8)])
            await asyncio.wait_for(all_seen.wait(), 60)
        assert sorted(seen) == list(range(8))


def in_a_network_of_its_own() -> None:
    """A server, a worker and a caller, whose network goes away in the kernel and comes back."""

    def network(state: str) -> None:
        subprocess.run(["ip", "link", "set", "lo", state], check=True)

    network("up")
    server = RedisServer()
    server.start()
    try:
        asyncio.run(over_a_break(server, network))
    finally:
        server.remove()


async def over_a_break(server: RedisServer, network: Callable[[str], None]) -> None:
    app = Outlast(server.url(query="durability=process"))
    begun, go_on = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @app.task(name="held")
    async def held() -> str:
        begun.set()
        await go_on.wait()
        return "held"

    @app.task(name="count")
    async def count(n: int) -> None:
        runs.append(n)

    async with app, app.worker(concurrency=4, lease=30.0):
        handle = await held.enqueue()
        await begun.wait()
        network("down")
        call = count.call(1)
        meanwhile = asyncio.create_task(app.enqueue_many([call]))
        await asyncio.to_thread(linger, 2.0)
        assert not meanwhile.done() or meanwhile.exception() is not None
        network("up")
        try:
            await meanwhile
            answer = "late"
        except (EnqueueUncertain, StoreUnavailable):
            answer = "raised"
        go_on.set()
        assert await handle.result(timeout=60) == "held"
        (again,) = await app.enqueue_many([call])
        await again.result(timeout=60)
        say([answer, runs, (await handle.job()).attempt])


@pytest.mark.needs("netns", "redis")
def test_n1_a_network_that_goes_away_and_comes_back_costs_nothing() -> None:
    """No proxy: what is on its way is lost in the kernel, and nobody is told."""
    with Child(in_a_network_of_its_own, before=("unshare", "--net")) as child:
        answer, runs, attempt = child.hear(90.0)
        assert (answer in ("late", "raised"), runs, attempt) == (True, [1], 1)
        child.end(90.0)


@asynccontextmanager
async def answering(data: bytes) -> AsyncIterator[int]:
    """The port of a server that says this to everybody, whatever is asked, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read(1)
            writer.write(data)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("scheme", ["redis", "postgresql", "amqp"])
@pytest.mark.parametrize("answer", ANSWERS)
async def test_n4_what_is_no_server_is_called_so_in_time(scheme: str, answer: str) -> None:
    async with answering(ANSWERS[answer]) as port:
        store = connect(f"{scheme}://user:S3cret@127.0.0.1:{port}/?durability=process")
        with pytest.raises(StoreUnavailable) as caught:
            await store.open()
        assert f"127.0.0.1:{port}" in str(caught.value)
        assert "S3cret" not in str(caught.value)
        await store.close()
