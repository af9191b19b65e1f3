"""``amqps://``: the broker's certificate is checked, by the authority that the URL names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.authority import Authority
from tests.proof.patience import until
from tests.servers import RabbitServer, free_port, listens

from outlast import Outlast
from outlast.errors import ConfigurationError
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.needs("rabbitmq")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ours")


@pytest.fixture(scope="module")
def port(authority: Authority) -> Iterator[int]:
    """Where a broker listens that shows a certificate for 127.0.0.1."""
    certificate, key = authority.issue("server", "127.0.0.1")
    port = free_port()
    server = RabbitServer(
        settings=f"listeners.ssl.1 = 127.0.0.1:{port}\nssl_options.cacertfile = {authority.file}\n"
        f"ssl_options.certfile = {certificate}\nssl_options.keyfile = {key}\n"
        "ssl_options.verify = verify_none"
    )
    try:
        server.start()
        until(lambda: listens(port), 60.0, "it takes TLS", beat=0.02)  # later than the other
        yield port
    finally:
        server.remove()


async def test_jobs_travel_by_tls(port: int, authority: Authority) -> None:
    app = Outlast(f"amqps://guest:guest@127.0.0.1:{port}/?cafile={authority.file}")
    seen: list[int] = []

    @app.task(name="note", timeout=60.0)
    async def note(number: int, text: str) -> None:
        assert text == "x" * 50_000
        seen.append(number)

    async with app:
        await app.enqueue_many([note.call(number, "x" * 50_000) for number in range(40)])
        async with app.worker():
            while len(seen) < 40:
                await app.store.wait(["default"], 0.02)
    assert sorted(seen) == list(range(40))


async def test_another_authority_is_refused(port: int, folder: Path) -> None:
    other = Authority(folder, "another")
    store = connect(f"amqps://guest:Secret1@127.0.0.1:{port}/?cafile={other.file}")
    with pytest.raises(ConfigurationError, match=r"certificate.*cafile=") as caught:
        await store.open()
    assert "Secret1" not in str(caught.value)


async def test_what_the_system_does_not_know_is_refused(port: int) -> None:
    store = connect(f"amqps://guest:guest@127.0.0.1:{port}/")
    with pytest.raises(ConfigurationError, match=r"certificate.*cafile="):
        await store.open()


async def test_another_name_than_that_of_the_certificate(port: int, authority: Authority) -> None:
    store = connect(f"amqps://guest:guest@localhost:{port}/?cafile={authority.file}")
    with pytest.raises(ConfigurationError, match=r"certificate.*localhost"):
        await store.open()


async def test_an_authority_that_can_not_be_read(port: int, folder: Path) -> None:
    for cafile in (folder / "nowhere.pem", folder / "server.key"):
        store = connect(f"amqps://guest:guest@127.0.0.1:{port}/?cafile={cafile}")
        with pytest.raises(
            ConfigurationError, match=r"cafile=.*(nowhere\.pem|server\.key) can.t be read"
        ):
            await store.open()
