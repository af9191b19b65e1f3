"""Power cuts of a private PostgreSQL, on the rig of ``tests.proof.cut``.

Run it as root: ``python -m tests.proof.cut_postgres --rounds 5 --load postgres-power``.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import subprocess
from typing import TYPE_CHECKING, Any

import psycopg
from tests.proof import journal as journals
from tests.proof.actors import drained_in_child, live
from tests.proof.cut import Outcome, judged, main
from tests.proof.processes import in_child
from tests.servers import PostgresServer

from outlast.doctor import examine
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.proof.cut import Load
    from tests.proof.journal import Journal

    from outlast.store import Store

__all__ = ["LOADS"]

IMAGE_BYTES = 512 << 20
PATIENCE = 180.0
ROLE_OFF = "ALTER ROLE outlast SET synchronous_commit = off"


class OnServer:
    """A server whose data lie on the rig's disk; its binaries, socket and log do not."""

    children = 2
    size = IMAGE_BYTES
    survives = True
    """Whether the server must come up again after the cut."""

    def __init__(self, *before: str, **settings: str) -> None:
        self._before = before
        self._server = PostgresServer(**settings)
        atexit.register(self._server.remove)
        self._laid = self._server.data

    def lay(self, folder: Path) -> None:
        folder.parent.chmod(0o755)  # the server is somebody else
        subprocess.run(["cp", "-a", self._laid, folder / "data"], check=True)

    def predict(self, folder: Path) -> str:
        """Nothing: doctor looks at stores of outlast."""
        return ""

    def prepare(self, folder: Path) -> None:
        """The server runs; the tables are made under load."""
        self._server.data = folder / "data"
        self._server.start()
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            for text in self._before:
                connection.execute(text.encode())

    def end(self) -> None:
        self._server.kill()

    def judge(self, folder: Path, witness: Path) -> Outcome:
        try:
            self._server.start()
        except AssertionError:
            if self.survives:
                raise
            gone = sum(event.kind == "ok" for event in journals.read(witness))
            return Outcome(gone, gone)
        try:
            return self.compare(witness)
        finally:
            self._server.kill()

    def compare(self, witness: Path) -> Outcome:
        """What the server holds, beside the journals."""
        raise AssertionError("a subclass says it")


class PlainPostgres(OnServer):
    """The driver alone, one row a commit: shows what the rig can see."""

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            connection.execute(f"CREATE TABLE item{number} (id int)".encode())
            row = 0
            while True:
                connection.execute(f"INSERT INTO item{number} VALUES ({row})".encode())
                journal.write("ok", f"{number} {row}")
                row += 1

    def compare(self, witness: Path) -> Outcome:
        promised = {event.id for event in journals.read(witness) if event.kind == "ok"}
        there: set[str] = set()
        with psycopg.connect(self._server.url(), autocommit=True) as connection:
            for number in range(self.children):
                table = f"item{number}"
                [found] = connection.execute("SELECT to_regclass(%s)", (table,)).fetchall()
                if found[0] is not None:
                    rows: Any = connection.execute(f"SELECT id FROM {table}".encode())
                    there |= {f"{number} {row}" for (row,) in rows}
        return Outcome(len(promised), len(promised - there))


class OutlastOnPostgres(OnServer):
    """Two processes on one store: they add, claim and settle, until the power goes."""

    def __init__(self, *before: str, asked: str = "power", **settings: str) -> None:
        super().__init__(*before, **settings)
        self._asked = asked
        self.survives = asked != "process"

    def url(self, folder: Path) -> str:
        """Where the store is, on a disk that is mounted there."""
        return self._server.url(durability=self._asked)

    def _store(self) -> Store:
        return connect(self.url(self._server.data))

    def predict(self, folder: Path) -> str:
        """What doctor says of such a server, in words of the enum."""
        self.prepare(folder)
        answer = folder / "said"

        async def look() -> None:
            store = self._store()
            await store.open()
            await store.close()
            found = await examine(self._server.url(durability=self._asked))
            answer.write_text(str(found.accepted))

        try:
            in_child(lambda: asyncio.run(look()), PATIENCE)
            return answer.read_text()
        finally:
            self.end()

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        asyncio.run(live(self._store, journal, os.getpid(), lease=2.0))

    def compare(self, witness: Path) -> Outcome:
        answer = witness / "final.json"
        try:
            final = drained_in_child(self._store, witness, answer, PATIENCE)
        except RuntimeError:
            if self.survives:
                raise
            # Without any sync PostgreSQL itself promises nothing: no table need be sound now.
            gone = sum(event.kind == "ok" for event in journals.read(witness))
            return Outcome(gone, gone)
        return judged(witness, final)


LOADS: Mapping[str, Callable[[], Load]] = {
    "postgres-power": OutlastOnPostgres,
    "postgres-role-off": lambda: OutlastOnPostgres(ROLE_OFF),
    "postgres-process": lambda: OutlastOnPostgres(asked="process", fsync="off"),
    "plain-postgres": PlainPostgres,
    "plain-postgres-async": lambda: PlainPostgres(ROLE_OFF),
}

if __name__ == "__main__":
    main(LOADS)
