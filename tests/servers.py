"""Servers of the tests' own: each with a folder of its own, started and ended here."""

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

__all__ = ["RedisServer", "Server", "free_port"]


class Server:
    """A child process with a folder of its own. Subclasses say how it is started and greeted."""

    name = "server"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"outlast-{self.name}-"))
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise AssertionError("a subclass says it")

    def answers(self) -> bool:
        raise AssertionError("a subclass says it")

    def start(self) -> None:
        """And wait until it answers."""
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not self.answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-4000:]

    def kill(self) -> None:
        """At once, with all its processes."""
        self.end(signal.SIGKILL)

    def end(self, how: int) -> None:
        """By this signal; and wait until it is over."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            process.wait(60)

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisServer(Server):
    """Redis, or Valkey; by default with an append-only file that is synced each second."""

    name = "redis"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.port = free_port()
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
        return ["redis-server", *([self.configuration] if self.configuration else []), *options]

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


def free_port() -> int:
    """One that nobody listens on, and that the system gives to no client meanwhile."""
    dice = random.SystemRandom()
    while True:
        port = dice.randrange(15_000, 30_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port
