"""Workers as processes: Celery's own, and ours."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.contrib.beside.pair import PATIENCE, ROOT
from tests.proof.patience import until
from tests.proof.processes import import_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Workers"]


class Workers:
    """In one folder, on one broker; what tasks ``say`` is read here."""

    def __init__(self, folder: Path, broker: str, **environment: str) -> None:
        self.folder = folder
        self.log = folder / "said"
        self.environment = {
            **os.environ, "PYTHONPATH": import_path(ROOT), "BROKER": broker, "FOLDER": str(folder),
            "LOG": str(self.log), "C_FORCE_ROOT": "1", **environment,
        }  # fmt: skip
        self._processes: list[subprocess.Popen[bytes]] = []

    def celery(self, *arguments: str, module: str = "tests.contrib.beside.theirs") -> None:
        """A worker of Celery's that is ready."""
        self._start(
            ["celery", "-A", module, "worker", "-P", "solo", "-l", "INFO", *arguments], " ready."
        )

    def ours(self, *arguments: str, module: str = "tests.contrib.beside.ours", **more: str) -> None:
        self._start(["outlast", "worker", f"{module}:app", "--create", *arguments], "", **more)

    def _start(self, arguments: list[str], ready: str, **more: str) -> None:
        out = self.folder / f"worker-{len(self._processes)}.log"
        with out.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", *arguments], cwd=self.folder,
                env={**self.environment, **more}, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)

        def is_ready() -> bool:
            assert process.poll() is None, out.read_text()[-3000:]
            return ready in out.read_text()

        until(is_ready, PATIENCE, f"{arguments[0]} is ready")

    def said(self, word: str) -> list[Any]:
        """What was said under this word, in order."""
        if not self.log.exists():
            return []
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line[word] for line in lines if word in line]

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
