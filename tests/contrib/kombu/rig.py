"""A folder with a Celery program, its workers as processes, and the log that its tasks write."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from celery import Celery
from tests.proof.patience import until
from tests.proof.processes import import_path

__all__ = ["PATIENCE", "Rig"]

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0


class Rig:
    """Everything on one broker. ``broker`` and ``backend`` are URLs as Celery's users give them."""

    def __init__(self, folder: Path, broker: str | None = None, **options: Any) -> None:
        self.folder = folder
        self.file = folder / "app.db"
        self.broker = broker or f"outlast+sqlite:///{self.file}"
        self.url = self.broker.partition("+")[2]
        self.backend: str | None = None
        self.options = options
        self.log = folder / "said"
        self.gate = str(folder / "gate")
        self.newer = False
        """Whether the next workers know a task more."""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._app: Celery | None = None

    @property
    def app(self) -> Any:
        """A producer in this process, which knows nothing of the tasks' code."""
        if self._app is None:
            self._app = Celery("producer", broker=self.broker, backend=self.backend)
            self._app.conf.broker_transport_options = self.options
            self._app.conf.result_expires = 3600
        return self._app

    def send(self, task: str, *args: Any, **options: Any) -> Any:
        return self.app.send_task(task, args, **options)

    # -- workers

    def worker(self, *arguments: str, name: str = "w", **config: Any) -> subprocess.Popen[bytes]:
        """A worker that is ready."""
        number = len(self.workers)
        out = self.folder / f"worker-{number}.log"
        environment = {
            **os.environ, "PYTHONPATH": import_path(ROOT),
            "BROKER": self.broker, "LOG": str(self.log),
            "OPTIONS": json.dumps(self.options), "CONFIG": json.dumps(config), "C_FORCE_ROOT": "1",
            "BACKEND": self.backend or "", "PYTHONWARNINGS": "default",
            "NEWER": "1" if self.newer else "",
        }  # fmt: skip
        command = [
            sys.executable, "-m", "celery", "-A", "tests.contrib.kombu.program", "worker",
            "-n", f"{name}@here", "-l", "INFO", *arguments,
        ]  # fmt: skip
        with out.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self.workers.append(process)

        def ready() -> bool:
            assert process.poll() is None, out.read_text()[-3000:]
            return " ready." in out.read_text()

        until(ready, PATIENCE, f"worker {number} is ready")
        return process

    def text(self, number: int = 0) -> str:
        """What a worker has logged."""
        return (self.folder / f"worker-{number}.log").read_text()

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """At once, with all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)

    def stop(self, process: subprocess.Popen[bytes]) -> int:
        """In order; its exit code."""
        process.send_signal(signal.SIGTERM)
        return process.wait(PATIENCE)

    def close(self) -> None:
        for process in self.workers:
            self.kill(process)
        if self._app is not None:
            # Celery keeps them for all programs of this process, with the store behind them open.
            self._app.pool.force_close_all()
            self._app.close()

    # -- what was said

    def said(self) -> list[dict[str, Any]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def ends(self) -> list[Any]:
        return [line["end"] for line in self.said() if "end" in line]

    def starts(self) -> list[Any]:
        return [line["start"] for line in self.said() if "start" in line]

    def wait_for(self, *numbers: Any) -> None:
        """Until each of these tasks has ended."""
        until(lambda: set(numbers) <= set(self.ends()), PATIENCE, f"the ends of {numbers}")

    def open_gate(self) -> None:
        Path(self.gate).touch()
