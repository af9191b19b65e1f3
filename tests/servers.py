"""Servers of the tests' own: each with a folder and a port of its own, started and ended here.

One more kind is a subclass of ``Server``. ``shared(Kind)`` is the one that all tests of a process
use, started when the first needs it; whatever else a test makes, it removes.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import asyncpg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "REDIS_SERVER",
    "REDIS_SETTINGS",
    "ConfiguredRedis",
    "PgBouncer",
    "PostgresServer",
    "PostgresStandby",
    "RabbitServer",
    "RedisServer",
    "Server",
    "free_port",
    "listens",
    "remove_shared",
    "shared",
]

PATIENCE = 60.0
REDIS_SERVER = os.environ.get("OUTLAST_REDIS_SERVER", "redis-server")
"""The program that is started as Redis: ``valkey-server``, say."""
_FILE = ('save ""', "appendonly yes")
REDIS_SETTINGS: Mapping[str, Sequence[str]] = {
    "always": (*_FILE, "appendfsync always"),
    "everysec": (*_FILE, "appendfsync everysec"),
    "no": (*_FILE, "appendfsync no"),
    "rewrites": (*_FILE, "appendfsync always", "no-appendfsync-on-rewrite yes"),
    "rdb": ("save 3600 1", "appendonly no"),
    "none": ('save ""', "appendonly no"),
    "evicting": (*_FILE, "appendfsync always", "maxmemory 100mb", "maxmemory-policy allkeys-lru"),
}
"""What a server keeps, by the lines of its configuration file."""
NOBODY = 65534


class Server:
    """A child process with a folder of its own. Subclasses say how it is started and greeted."""

    name = "server"
    as_nobody = False
    """Whether it refuses to run as root, and runs as nobody instead."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"outlast-{self.name}-"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.env: dict[str, str] | None = None
        self.user: dict[str, Any] = {}
        if self.as_nobody and os.geteuid() == 0:
            self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            os.chown(self.folder, NOBODY, NOBODY)

    def command(self) -> list[str]:
        raise AssertionError("a subclass says it")

    def answers(self) -> bool:
        raise AssertionError("a subclass says it")

    def start(self) -> None:
        """And wait until it answers."""
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, env=self.env, **self.user,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not self.answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """At once, with all its processes, as a crash of the machine's memory would."""
        process, self.process = self.process, None
        if process is None:
            return
        # Some lead a session of their own, so that no group has them all.
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
        mine = _offspring_of(process.pid)
        for pid in [*mine, process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while any(_is_there(pid) for pid in mine):
            assert time.monotonic() < deadline, "they do not die"

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """With all its processes: it answers nobody meanwhile, and nobody hears that it is gone."""
        assert self.process is not None
        pids = [self.process.pid, *_offspring_of(self.process.pid)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def end(self, how: int) -> None:
        """By this signal; and wait until it is over."""
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(how)
            process.wait(PATIENCE)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer(Server):
    """Redis, or Valkey; by default with an append-only file that is synced each second."""

    name = "redis"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.configuration = ""
        self.settings = {
            "appendonly": "yes", "appendfsync": "everysec", "save": "", "bind": "127.0.0.1",
            "enable-debug-command": "local",
        } | {name.replace("_", "-"): value for name, value in settings.items()}  # fmt: skip

    def url(self, *, port: int | None = None, query: str = "") -> str:
        return f"redis://127.0.0.1:{port or self.port}" + (f"?{query}" if query else "")

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--dir", str(self.folder)]
        for name, value in self.settings.items():
            options += [f"--{name}", value]
        return [REDIS_SERVER, *([self.configuration] if self.configuration else []), *options]

    def answers(self) -> bool:
        try:
            answer = self.say("PING")
        except OSError:
            return False
        return answer.startswith((b"+PONG", b"-NOAUTH"))

    def say(self, *words: str) -> bytes:
        """One command as plain text, and the beginning of its answer."""
        with socket.create_connection(("127.0.0.1", self.port), 10) as line:
            line.settimeout(30)
            line.sendall(" ".join(words).encode() + b"\r\n")
            return line.recv(65536)

    def empty(self) -> None:
        """Forget all jobs."""
        self.say("FLUSHALL")


class ConfiguredRedis(RedisServer):
    """One of the ways to set what a server keeps, read from a configuration file of its own."""

    def __init__(self, setting: str) -> None:
        super().__init__()
        lines = ["bind 127.0.0.1", "enable-debug-command local", *REDIS_SETTINGS[setting]]
        path = self.folder / "redis.conf"
        path.write_text("\n".join(lines) + "\n")
        self.configuration, self.settings = str(path), {}


class PostgresServer(Server):
    """PostgreSQL: the one on the PATH, or else the newest on this machine.

    Of its programs only ``postgres`` and ``initdb`` are used: some builds have no others.
    """

    name = "pg"
    as_nobody = True

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.data = self.folder / "data"
        self.env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
        self.settings = {
            "autovacuum_naptime": "5s",
            "checkpoint_timeout": "30min",
            "listen_addresses": "'127.0.0.1'",
            "log_line_prefix": "'%m [%p] %q%a '",
            "max_connections": "60",
            "port": str(self.port),
            "shared_buffers": "64MB",
            "unix_socket_directories": f"'{self.folder}'",
        } | settings
        self._bin = _postgres_binaries()
        subprocess.run(
            [self._bin / "initdb", "-D", self.data, "-U", "outlast", "-A", "trust", "--no-sync",
             "-E", "UTF8", "--locale=C"],
            check=True, capture_output=True, cwd=self.folder, env=self.env, **self.user,
        )  # fmt: skip
        lines = [f"{name} = {value}" for name, value in self.settings.items()]
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")

    def url(self, database: str = "postgres", port: int | None = None, **query: str) -> str:
        asked = "&".join(f"{name}={value}" for name, value in query.items())
        place = f"postgresql://outlast@127.0.0.1:{port or self.port}/{database}"
        return f"{place}?{asked}" if asked else place

    def command(self) -> list[str]:
        return [str(self._bin / "postgres"), "-D", str(self.data)]

    def answers(self) -> bool:
        """While it starts or recovers, it greets with an error instead."""
        greeting = b"\0\3\0\0user\0outlast\0database\0postgres\0\0"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 10) as line:
                line.settimeout(30)
                line.sendall((len(greeting) + 4).to_bytes(4, "big") + greeting)
                ready = line.recv(1) == b"R"
                line.sendall(b"X\0\0\0\4")
        except OSError:
            return False
        return ready

    def stop(self) -> None:
        """In order, without waiting for those who are connected."""
        self.end(signal.SIGINT)

    async def empty(self) -> None:
        """Forget all jobs; the tables stay."""
        connection = await asyncpg.connect(self.url())
        try:
            await connection.execute(_EMPTY)
        finally:
            await connection.close()


class PostgresStandby(PostgresServer):
    """What follows a running PostgreSQL, until it is promoted; made while that one is down."""

    name = "pgs"

    def __init__(self, primary: PostgresServer) -> None:
        Server.__init__(self)
        self.data = self.folder / "data"
        self.env = primary.env
        self._bin = primary._bin
        # Not by pg_basebackup, which takes nothing of a server that is newer than itself.
        primary.stop()
        subprocess.run(["cp", "-a", primary.data, self.data], check=True, **self.user)
        primary.start()
        (self.data / "standby.signal").touch()
        with open(self.data / "postgresql.conf", "a", encoding="utf-8") as file:
            file.write(f"port = {self.port}\nunix_socket_directories = '{self.folder}'\n")
            file.write(f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=outlast'\n")


class PgBouncer(Server):
    """A pooler before a PostgreSQL: each transaction may meet another session."""

    name = "pgbouncer"
    as_nobody = True

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self.server = server
        (self.folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host=127.0.0.1 port={server.port} user=outlast\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir = {self.folder}\nauth_type = any\npool_mode = transaction\n"
            "default_pool_size = 2\nmax_client_conn = 100\n"
        )
        self.env = {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}

    def url(self, **query: str) -> str:
        return self.server.url(port=self.port, **query)

    def knows_statements(self) -> bool:
        """Since 1.24 it prepares statements anew where they are used, unless it is told not to."""
        said = subprocess.run(
            ["pgbouncer", "--version"], env=self.env, capture_output=True, text=True
        )
        return tuple(map(int, said.stdout.split()[1].split(".")[:2])) >= (1, 24)

    def command(self) -> list[str]:
        return ["pgbouncer", "-q", str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        with socket.socket() as found:
            return found.connect_ex(("127.0.0.1", self.port)) == 0


_EMPTY = """
DO $$ DECLARE name text; used boolean; BEGIN
    FOR name IN SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
        WHERE schemaname LIKE 'outlast%' AND tablename <> 'meta' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO used;
        IF used THEN EXECUTE 'TRUNCATE ' || name; END IF;
    END LOOP;
END $$
"""

S = TypeVar("S", bound=Server)
_shared: dict[tuple[object, ...], Server] = {}


def shared(kind: Callable[..., S], *settings: str) -> S:
    """The one of this kind that the tests of this process share; each finds what others left.

    A test that fails after it has killed the server fails alone: here it comes back.
    """
    key = (kind, *settings)
    if key not in _shared:
        _shared[key] = kind(*settings)
    if _shared[key].process is None:
        _shared[key].start()
    return cast("S", _shared[key])


def remove_shared() -> None:
    while _shared:
        _shared.popitem()[1].remove()


class RabbitServer(Server):
    """RabbitMQ: a node with a name, a cookie, ports and an epmd of its own. Starts in 5 to 10 s."""

    name = "rabbitmq"

    def __init__(self, *, settings: str = "", plugins: Sequence[str] = ()) -> None:
        super().__init__()
        self.management = free_port()
        self.settings = settings
        self.plugins = plugins
        self._epmd_port = free_port()
        self._node = f"outlast{self.port}@localhost"
        self._epmd: subprocess.Popen[bytes] | None = None
        folder = str(self.folder)
        self.env = os.environ | {
            "HOME": folder,
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_BASE": folder,
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            # Two schedulers, no busy waiting: it shares the machine with the tests.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def url(
        self, *, port: int | None = None, query: str = "", user: str = "guest:guest",
        vhost: str = "",
    ) -> str:  # fmt: skip
        place = f"amqp://{user}@127.0.0.1:{port or self.port}/{vhost}"
        return place + (f"?{query}" if query else "")

    def make_vhost(self, name: str) -> str:
        """A new and empty part of the broker."""
        self.evaluate(
            f'rabbit_vhost:add(<<"{name}">>, <<"test">>), rabbit_auth_backend_internal:'
            f'set_permissions(<<"guest">>, <<"{name}">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).'
        )
        return name

    def command(self) -> list[str]:
        return [str(_rabbit("rabbitmq-server"))]

    def start(self) -> None:
        """And wait until it answers; a second time it finds what the first one left."""
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text("outlastsecret")
            cookie.chmod(0o400)
        conf = f"loopback_users = none\n{self.settings}\n"
        if "rabbitmq_management" in self.plugins:
            conf += f"management.tcp.port = {self.management}\n"
        (self.folder / "rabbitmq.conf").write_text(conf)
        (self.folder / "plugins").write_text(f"[{','.join(self.plugins)}].\n")
        if self._epmd is None:
            self._epmd = subprocess.Popen(
                ["epmd", "-address", "127.0.0.1", "-port", str(self._epmd_port)],
                cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            # Erlang starts one of its own where it finds none, and leaves it behind.
            deadline = time.monotonic() + PATIENCE
            while not listens(self._epmd_port):
                assert time.monotonic() < deadline, "no epmd"
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._epmd.wait(0.02)
        super().start()

    def answers(self) -> bool:
        """The listener comes last: whoever is greeted can use everything."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 10) as line:
                line.settimeout(30)
                line.sendall(b"AMQP\x00\x00\x09\x01")
                return line.recv(1) == b"\x01"
        except OSError:
            return False

    def ctl(self, *words: str) -> str:
        """``rabbitmqctl``: it takes a second."""
        done = subprocess.run(
            [str(_rabbit("rabbitmqctl")), "-n", self._node, *words],
            env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def evaluate(self, expression: str) -> str:
        """Some Erlang, run in the node."""
        return self.ctl("eval", expression)

    def remove(self) -> None:
        super().remove()
        epmd, self._epmd = self._epmd, None
        if epmd is not None:
            epmd.kill()
            epmd.wait(60)


_drawn: set[int] = set()


def free_port() -> int:
    """One that nobody listens on, and that the system gives to no client meanwhile.

    Nor is it drawn again: a server may take seconds until it listens there, and listens there again
    after it was killed. Each process of a run has ports of its own to draw from.
    """
    dice = random.SystemRandom()
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = dice.randrange(15_000 + mine, 30_000, processes)
        if port in _drawn:
            continue
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            _drawn.add(port)
            return port


def _postgres_binaries() -> Path:
    found = shutil.which("postgres")
    if found is not None:
        return Path(found).resolve().parent
    places = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max(places, key=lambda path: float(path.parts[-3])).parent


def _offspring_of(pid: int) -> list[int]:
    """Its children, and theirs."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents[int(path.parent.name)] = parent
    found: list[int] = []
    level = [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        found += level
    return found


def _is_there(pid: int) -> bool:
    """Whether it lives: one that only waits to be counted among the dead holds nothing."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def listens(port: int) -> bool:
    """Whether anybody does there."""
    try:
        socket.create_connection(("127.0.0.1", port), 10).close()
    except OSError:
        return False
    return True


def _rabbit(program: str) -> Path:
    """Debian's scripts in ``/usr/sbin`` change the user; the server's own don't."""
    return sorted(Path("/usr/lib/rabbitmq/lib").glob(f"rabbitmq_server-*/sbin/{program}"))[-1]
