"""The program of docs/celery.md, "Under it", and the commands beside it, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

from celery import Celery
from tests.contrib.beside.pair import PATIENCE, ROOT
from tests.contrib.beside.workers import Workers

if TYPE_CHECKING:
    from pathlib import Path


def test_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "celery.md").read_text()
    section = page[page.index("## Under it") : page.index("## Beside it")]
    (program,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    workers = Workers(tmp_path, "", OUTLAST_URL="sqlite:///shop.db")

    def say(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=workers.environment,
            capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        id_ = say("shop.py").strip()
        commands = re.findall(r"^outlast (.*?)(?: +#.*)?$", section, re.MULTILINE)
        assert len(commands) == 3
        said = [say("-m", "outlast", *command.split()) for command in commands]
        assert "celery" in said[0]
        workers.celery(module="shop")
        app = Celery(backend=f"outlast+sqlite:///{tmp_path}/shop.db", set_as_current=False)
        assert app.AsyncResult(id_).get(timeout=PATIENCE) == "receipt for order 42"
        app.close()
    finally:
        workers.close()
