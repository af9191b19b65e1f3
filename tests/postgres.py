"""A PostgreSQL server of the tests' own: private folder, private port, started and stopped here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import asyncpg

__all__ = ["Server", "binaries", "empty", "remove", "shared"]

NOBODY = 65534
SETTINGS = {
    "autovacuum_naptime": "5s",
    "checkpoint_timeout": "30min",
    "listen_addresses": "'127.0.0.1'",
    "log_line_prefix": "'%m [%p] %q%a '",
    "max_connections": "60",
    "shared_buffers": "64MB",
}


def binaries() -> Path | None:
    """Where the newest server on this machine is, or None."""
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    places = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    newest = sorted(places, key=lambda path: float(path.parts[-3]))
    return newest[-1].parent if newest else None


class Server:
    """One server. With root it runs as nobody, since PostgreSQL refuses root."""

    def __init__(self, **settings: str) -> None:
        self.settings = SETTINGS | settings
        self.folder = Path(tempfile.mkdtemp(prefix="outlast-pg-"))
        self.data = self.folder / "data"
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chown(self.folder, NOBODY, NOBODY)
        self._initialize()

    def url(self, database: str = "postgres", port: int | None = None, **query: str) -> str:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        place = f"postgresql://outlast@127.0.0.1:{port or self.port}/{database}"
        return f"{place}?{asked}" if asked else place

    def _initialize(self) -> None:
        folder = binaries()
        assert folder is not None
        self._bin = folder
        subprocess.run(
            [folder / "initdb", "-D", self.data, "-U", "outlast", "-A", "trust", "--no-sync",
             "-E", "UTF8", "--locale=C"],
            check=True, capture_output=True, cwd=self.folder, env=self._env(), **self._user,
        )  # fmt: skip
        lines = [f"{name} = {value}" for name, value in self.settings.items()]
        lines += [f"port = {self.port}", f"unix_socket_directories = '{self.folder}'"]
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}

    def start(self) -> None:
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.data],
                stdout=log, stderr=log, cwd=self.folder, env=self._env(),
                start_new_session=True, **self._user,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while subprocess.run(
            [self._bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)],
            check=False, env=self._env(), cwd=self.folder,
        ).returncode:  # fmt: skip
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """At once, with all its processes, as a crash of the machine's memory would."""
        process, self.process = self.process, None
        if process is not None:
            # Each of them leads a session of its own, so there is no group to send it to.
            process.send_signal(signal.SIGSTOP)
            mine = _children_of(process.pid)
            for pid in [*mine, process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait(60)
            deadline = time.monotonic() + 60
            while any(_is_there(pid) for pid in mine):
                assert time.monotonic() < deadline, "they do not die"

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """In order, by default without waiting for those who are connected."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children_of(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def _is_there(pid: int) -> bool:
    """Whether it lives: one that only waits to be counted among the dead holds nothing."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


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
