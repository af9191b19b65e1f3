"""A PostgreSQL whose disk is full: what is not stored is said; with room again it goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.servers import NOBODY, PostgresServer

from outlast.errors import StoreFull
from outlast.job import Job, done
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs("servers", "cut")

PAYLOAD = b'"' + os.urandom(4000).hex().encode() + b'"'


class Cramped(PostgresServer):
    """Its tables lie on a small disk of their own, that nobody else sees and that ends with it."""

    as_nobody = True

    def command(self) -> list[str]:
        base = self.data / "base"
        words = (
            f"cp -a {base} {base}.all && mount -t tmpfs -o size=48m tmpfs {base}"
            f" && cp -a {base}.all/. {base} && chown {NOBODY}:{NOBODY} {base}"
            f" && exec setpriv --reuid {NOBODY} --regid {NOBODY} --clear-groups"
            f" {' '.join(super().command())}"
        )
        self.user = {}
        self.env = {**(self.env or {}), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", words]

    @property
    def filler(self) -> Path:
        """A file on that disk."""
        assert self.process is not None
        return Path(f"/proc/{self.process.pid}/root{self.data}/base/filler")

    def fill(self) -> None:
        """Somebody else takes every byte that is left."""
        with self.filler.open("wb", buffering=0) as file:
            size = 1 << 20
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2


@pytest.fixture
def server() -> Iterator[Cramped]:
    made = Cramped(autovacuum="off")
    made.start()
    yield made
    made.remove()


async def refused_in_the_end(store: Any, accepted: list[str]) -> str:
    """Add until there is no room: what is accepted, and the first that was not."""
    while True:
        id_ = f"b{len(accepted)}"
        try:
            await store.add([Job(id=id_, payload=PAYLOAD)])
        except StoreFull:
            return id_
        accepted.append(id_)


async def test_what_is_not_stored_is_said_and_it_goes_on(server: Cramped) -> None:
    store: Any = connect(server.url())
    await store.open()
    try:
        accepted = [f"a{n}" for n in range(20)]
        await store.add([Job(id=id_, payload=PAYLOAD) for id_ in accepted])
        claims = await store.claim(["default"], [None], 10, 60.0, "w")
        server.fill()
        refused = await refused_in_the_end(store, accepted)
        assert await store.get([refused]) == [None]
        with pytest.raises(StoreFull):
            await store.settle([done(claim, PAYLOAD) for claim in claims])
        server.filler.unlink()
        assert not await store.settle([done(claim, PAYLOAD) for claim in claims])
        assert await store.add([Job(id=refused, payload=PAYLOAD)])
        assert all(await store.get([*accepted, refused]))
    finally:
        await store.close()
