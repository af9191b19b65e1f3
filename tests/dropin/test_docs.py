"""docs/queue.md is true: its program runs, and its other pieces are Python."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "queue.md").read_text(), re.M | re.S
)


def test_the_program_runs(tmp_path: Path) -> None:
    (program,) = (block for block in BLOCKS if "asyncio.run(" in block)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("hello Ada\nhello Grace\n", "")
    assert (tmp_path / "outlast.db").exists()


def test_the_rest_can_be_read() -> None:
    assert len(BLOCKS) >= 5
    for block in BLOCKS:
        compile(block, "docs/queue.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
