"""TLS: a server with a certificate of its own CA, made here; who is trusted, and what is left."""

from __future__ import annotations

import gc
import socket
import ssl
from typing import TYPE_CHECKING

import pytest
from tests.authority import Authority
from tests.proof.patience import until
from tests.servers import REDIS_SERVER, RedisServer, free_port
from tests.stores.test_redis import job, opened, take

from outlast.errors import ConfigurationError, StoreUnavailable
from outlast.job import done
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("redis")
SECRET = "S3cr3t!pw"


class TlsServer(RedisServer):
    """Speaks nothing but TLS."""

    def __init__(self, authority: Authority, address: str = "127.0.0.1", **settings: str) -> None:
        super().__init__(appendfsync="always", **settings)
        certificate, key = authority.issue("server", address)
        self.settings |= {
            "tls-port": str(self.port), "tls-cert-file": str(certificate),
            "tls-key-file": str(key), "tls-ca-cert-file": str(authority.file),
            "tls-auth-clients": self.settings.pop("tls-auth-clients", "no"),
        }  # fmt: skip
        self._context = ssl.create_default_context(cafile=str(authority.file))
        self._context.check_hostname = False
        self._context.load_cert_chain(certificate, key)

    def command(self) -> list[str]:
        words = super().command()
        words[words.index("--port") + 1] = "0"
        return words

    def url(self, *, port: int | None = None, query: str = "") -> str:
        return super().url(port=port, query=query).replace("redis://", "rediss://")

    def say(self, *words: str) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", self.port), 10) as line,
            self._context.wrap_socket(line) as safe,
        ):
            safe.settimeout(30)
            safe.sendall(" ".join(words).encode() + b"\r\n")
            return safe.recv(65536)


class TlsSentinel(TlsServer):
    """Watches a server, and speaks nothing but TLS, with it as well."""

    def __init__(self, authority: Authority, master: TlsServer) -> None:
        super().__init__(authority)
        lines = [f"{name} {value}" for name, value in self.settings.items() if name[:4] == "tls-"]
        lines += ["port 0", f"dir {self.folder}", "bind 127.0.0.1", "tls-replication yes"]
        lines += [f"sentinel monitor jobs 127.0.0.1 {master.port} 1"]
        self.configuration = str(self.folder / "sentinel.conf")
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [REDIS_SERVER, self.configuration, "--sentinel"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"), "ours")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[TlsServer]:
    server = TlsServer(authority)
    server.start()
    yield server
    server.remove()


async def test_jobs_over_tls(server: TlsServer, authority: Authority) -> None:
    async with opened(server.url(query=f"ssl_ca_certs={authority.file}")) as store:
        await store.add([job() for _ in range(10)])
        assert list(await store.settle([done(claim) for claim in await take(store)])) == []
        assert (await store.depth("default")).done == 10
        for _ in range(3):
            server.say("CLIENT", "KILL", "TYPE", "normal")
            await store.add([job()])


async def test_sentinels_over_tls(server: TlsServer, authority: Authority) -> None:
    sentinel = TlsSentinel(authority, server)
    sentinel.start()
    try:
        query = f"sentinel=jobs&ssl_ca_certs={authority.file}"
        async with opened(sentinel.url(query=query), namespace="watched") as store:
            await store.add([job()])
            assert len(await take(store)) == 1
    finally:
        sentinel.remove()


async def test_a_cluster_over_tls(authority: Authority) -> None:
    """The node that is asked sends us on to the other, which speaks TLS too."""
    nodes = [
        TlsServer(
            authority, cluster_enabled="yes", cluster_port=str(free_port()), tls_cluster="yes"
        )
        for _ in range(2)
    ]
    try:
        for each in nodes:
            each.start()
        first, second = nodes
        bus = second.settings["cluster-port"]
        first.say("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
        second.say("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
        first.say("CLUSTER", "MEET", "127.0.0.1", str(second.port), bus)
        until(
            lambda: all(b"cluster_state:ok" in each.say("CLUSTER", "INFO") for each in nodes),
            60.0,
            "the nodes are a cluster",
        )
        url = first.url(query=f"ssl_ca_certs={authority.file}")
        for name in ("a", "b", "c", "d"):
            async with opened(url, namespace=name) as store:
                await store.add([job()])
                assert len(await take(store)) == 1
        assert all(b":0\r\n" not in each.say("DBSIZE") for each in nodes), "each has some"
    finally:
        for each in nodes:
            each.remove()


async def test_whom_nobody_vouches_for_is_not_trusted(
    server: TlsServer, authority: Authority, tmp_path: Path
) -> None:
    """And nothing is left open: a transport that isn't closed would be told at its end."""
    wrong = Authority(tmp_path, "theirs")
    for query in ("", f"ssl_ca_certs={wrong.file}"):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"certificate .* \?ssl_ca_certs="):
                await connect(server.url(query=query)).open()
    gc.collect()


async def test_a_certificate_for_another_host(authority: Authority, tmp_path: Path) -> None:
    server = TlsServer(authority, "127.0.0.2")
    server.start()
    try:
        with pytest.raises(ConfigurationError, match="certificate"):
            await connect(server.url(query=f"ssl_ca_certs={authority.file}")).open()
    finally:
        server.remove()
    gc.collect()


async def test_one_side_without_tls(server: TlsServer) -> None:
    plain = RedisServer(appendfsync="always")
    plain.start()
    try:
        for url in (server.url().replace("rediss", "redis"), f"rediss://127.0.0.1:{plain.port}"):
            with pytest.raises(StoreUnavailable, match="can't reach"):
                await connect(url).open()
    finally:
        plain.remove()
    gc.collect()


async def test_a_client_that_has_to_show_a_certificate(authority: Authority) -> None:
    server = TlsServer(authority, tls_auth_clients="yes")
    server.start()
    certificate, key = authority.issue("client", "127.0.0.1")
    trust = f"ssl_ca_certs={authority.file}"
    try:
        with pytest.raises(StoreUnavailable):
            await connect(server.url(query=trust)).open()
        query = f"{trust}&ssl_certfile={certificate}&ssl_keyfile={key}"
        async with opened(server.url(query=query)) as store:
            await store.add([job()])
    finally:
        server.remove()
    gc.collect()
