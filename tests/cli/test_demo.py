"""`outlast demo`: it leaves the stores of real programs alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def test_the_store_of_the_environment_is_left_alone(tmp_path: Path) -> None:
    files, store = tmp_path / "files", tmp_path / "shop.db"
    files.mkdir()
    for number in range(60):
        (files / f"{number}.txt").write_text("a line\n")
    demo = subprocess.Popen(
        [sys.executable, "-m", "outlast", "demo", str(files)],
        cwd=tmp_path,
        env=os.environ | {"OUTLAST_URL": f"sqlite:///{store}", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert demo.stdout is not None
    with demo, demo.stdout:
        said = next((line for line in demo.stdout if line.startswith("store ")), "")
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
    assert str(tmp_path / "outlast-demo.db") in said
    assert not store.exists()
