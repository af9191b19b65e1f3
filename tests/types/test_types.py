"""Runs mypy over the two files beside this one and compares what it says with their comments."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(180)  # a cold run reads the whole package

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SAID = re.compile(r"(?P<file>[^:]+):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)")
REVEALED = re.compile(r'Revealed type is "(.*)"')


@pytest.fixture(scope="module")
def said() -> dict[str, dict[int, list[str]]]:
    """What mypy says, by file and line: errors as they are, notes only about revealed types."""
    command = [
        sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context",
        "--cache-dir", str(ROOT / ".cache" / "mypy-types"),
        str(HERE / "right.py"), str(HERE / "wrong.py"),
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: dict[str, dict[int, list[str]]] = {"right.py": {}, "wrong.py": {}}
    for line in done.stdout.splitlines():
        match = SAID.fullmatch(line)
        if match is None or Path(match["file"]).name not in found:
            continue
        text = match["text"]
        revealed = REVEALED.fullmatch(text)
        if match["kind"] == "note" and revealed is None:
            continue
        shown = revealed[1] if revealed else text
        found[Path(match["file"]).name].setdefault(int(match["line"]), []).append(shown)
    return found


def wanted(name: str, mark: str) -> dict[int, str]:
    lines = (HERE / name).read_text().splitlines()
    return {
        number: line.partition(f"# {mark}: ")[2]
        for number, line in enumerate(lines, 1)
        if f"# {mark}: " in line
    }


def test_what_must_be_concluded(said: dict[str, dict[int, list[str]]]) -> None:
    """No error at all, and each revealed type is the one in the comment."""
    expected = wanted("right.py", "N")
    assert len(expected) > 3
    assert said["right.py"].keys() == expected.keys(), said["right.py"]
    for line, pattern in expected.items():
        (shown,) = said["right.py"][line]
        assert shown.replace("tests.types.right.", "") == pattern


def test_what_must_be_refused(said: dict[str, dict[int, list[str]]]) -> None:
    """An error in each marked line and in no other."""
    expected = wanted("wrong.py", "E")
    assert len(expected) > 20
    assert said["wrong.py"].keys() == expected.keys(), said["wrong.py"]
    for line, part in expected.items():
        ways = part.split("|")
        assert any(way in text for text in said["wrong.py"][line] for way in ways), (
            line, part, said["wrong.py"][line],
        )  # fmt: skip
