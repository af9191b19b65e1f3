"""What comes with outlast: few packages, all pinned by hash, and nothing that calls home."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

IMPORT_ALL = """
import importlib, pkgutil, sys
seen = []
def hook(event, args):
    if event.split(".")[0] in ("socket", "urllib", "subprocess", "ftplib", "smtplib") or event in (
        "os.system", "os.exec", "os.posix_spawn", "os.fork"
    ):
        seen.append((event, repr(args)[:200]))
sys.addaudithook(hook)
import outlast
names = [m.name for m in pkgutil.walk_packages(outlast.__path__, "outlast.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
assert len(names) > 20, names
calls = [s for s in seen if s[0] != "socket.gethostname"]
assert not calls, calls
"""


def bill() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "sbom.py"], capture_output=True, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_core_needs_four_packages() -> None:
    names = {text.split(">")[0] for text in PROJECT["dependencies"]}
    assert names == {"apsw", "click", "msgspec", "rich"}


def test_importing_all_of_it_opens_no_socket_and_starts_no_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_bill_of_materials_names_everything_with_its_hashes() -> None:
    parts = {part["name"]: part for part in bill()["components"]}
    assert {"apsw", "click", "msgspec", "rich", "pygments", "markdown-it-py"} <= set(parts)
    assert "pytest" not in parts
    assert all(part["hashes"] for part in parts.values()), "not what the lock file pins"
    (sqlite,) = parts["apsw"]["components"]
    assert sqlite["name"] == "sqlite"
    assert tuple(map(int, sqlite["version"].split("."))) >= (3, 51, 3)


def test_the_way_to_report_is_written_down() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    assert "## Reporting" in text
    assert "in private" in text
