"""The pages in docs/ are true: each whole program in them runs."""

from __future__ import annotations

import re
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outlast import Outlast
from outlast.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parent.parent
PROGRAMS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    )
    # A fragment shows one line of something; a program imports what it needs.
    if re.search(r"^(import|from) ", block, re.MULTILINE)
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_runs(program: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_there_are_programs() -> None:
    assert len(PROGRAMS) >= 3


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in readme]
    assert not missing


@pytest.mark.parametrize("function", [Outlast.task, Task.using])
def test_the_page_of_tasks_names_every_option(function: Callable[..., object]) -> None:
    rows = "".join(re.findall(r"^\|.*", (ROOT / "docs" / "tasks.md").read_text(), re.MULTILINE))
    options = signature(function).parameters.keys() - {"self", "fn", "name"}
    assert {option for option in options if f"`{option}`" not in rows} == set()
