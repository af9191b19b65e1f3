"""The suite's own machinery: what is needed and missing skips aloud or fails, as it was asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import in_shares
from tests.servers import free_port

ROOT = Path(__file__).parent.parent

NEEDY = """\
import pytest

@pytest.mark.needs("py313")
def test_it() -> None: ...
"""


@pytest.mark.parametrize(
    ("required", "there", "outcome"),
    [
        ("", False, "1 skipped"),
        ("servers,py313", False, "1 error"),
        ("servers,py313", True, "1 passed"),
        ("", True, "1 passed"),
    ],
)
def test_what_is_required_fails_when_missing(
    tmp_path: Path, required: str, there: bool, outcome: str
) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_needy.py").write_text(NEEDY)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs(*what): x\n")
    environment = {**os.environ, "OUTLAST_REQUIRE": required}
    environment["OUTLAST_PY313"] = sys.executable if there else ""
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:randomly", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert outcome in done.stdout, done.stdout + done.stderr
    assert ("OUTLAST_PY313 names no Python 3.13" in done.stdout) is not there


def test_each_process_begins_with_its_share_of_what_takes_long() -> None:
    items = list("aBcdeFgHijK")
    shares = in_shares(items, [item.isupper() for item in items], 3)
    assert "".join(shares) == "BKac" + "Fde" + "Hgij"
    assert in_shares(items, [False] * len(items), 3) == items


def test_the_search_for_python_313_finds_one_with_its_tests_or_says_no() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "python313"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        assert "no Python 3.13" in done.stderr
        return
    probe = "import sys, test.test_asyncio; print(sys.version_info[:2])"
    found = subprocess.run(
        [done.stdout.strip(), "-c", probe], capture_output=True, text=True, check=True
    )
    assert found.stdout == "(3, 13)\n"


def test_the_search_does_not_believe_a_name() -> None:
    """A `python3.13` that is something else, or nothing at all, is passed over."""
    done = subprocess.run(
        [ROOT / "scripts" / "python313"],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "OUTLAST_PY313": sys.executable},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.strip() != sys.executable or sys.version_info[:2] == (3, 13)


def test_a_group_is_printed_with_what_it_includes() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "group.py", "dev"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    names = {line.split(">")[0] for line in done.stdout.splitlines()}
    assert {"pytest", "mypy", "ruff", "towncrier", "hatchling"} <= names


@pytest.mark.parametrize("script", ["scripts/venv", "scripts/check", "scripts/test", ".ci/run"])
def test_scripts_stop_at_the_first_error_and_parse(script: str) -> None:
    text = (ROOT / script).read_text()
    assert "set -euo pipefail" in text
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_no_two_processes_of_a_run_draw_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor one of them a port twice: who has drawn it may not listen there yet."""
    drawn: list[int] = []
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "3")
    for n in range(3):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{n}")
        drawn += (free_port() for _ in range(300))
    assert len(set(drawn)) == 900
    assert [{port % 3 for port in drawn[n * 300 : n * 300 + 300]} for n in range(3)] == [
        {0}, {1}, {2},
    ]  # fmt: skip
