"""The cases from the field in full, one file of ``tests/cases`` at a time, for the long run.

``python -m tests.proof.cases --seed 3`` runs the fourth; ``--only c30`` one by its name.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import msgspec

__all__ = ["FILES", "run_case"]

ROOT = Path(__file__).parents[2]
_ALL = sorted(path.name for path in (ROOT / "tests" / "cases").glob("test_*.py"))
FILES = sorted(_ALL, key=lambda name: not name.startswith("test_c"))
"""Those of one case each, then those of one kind of server."""


def run_case(name: str, budget: float) -> dict[str, object]:
    """Run one file with the counts and waits of the reports; what became of its tests."""
    with tempfile.TemporaryDirectory(prefix="outlast-cases-") as scratch:
        report = Path(scratch) / "report.xml"
        words = ["-q", "-n", "0", "-p", "no:randomly", "--junitxml", str(report)]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, f"tests/cases/{name}"],
            cwd=ROOT,
            env={**os.environ, "OUTLAST_FULL_CASES": "1"},
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=max(3600.0, budget),
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(f"pytest ended with {done.returncode}")
        tests = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [test for test in tests if _finding(test) is not None]
    skipped = sum(test.find("skipped") is not None for test in tests)
    return {
        "case": name.removeprefix("test_").removesuffix(".py"),
        "passed": len(tests) - len(failed) - skipped,
        "failed": len(failed),
        "skipped": skipped,
        "broken": {"failed": len(failed)} if failed else {},
        "stories": [f"{test.get('name')}: {_finding(test)}" for test in failed],
    }


def _finding(test: ElementTree.Element) -> str | None:
    """What a test died of, in a line; None if it passed."""
    for kind in ("failure", "error"):
        if (found := test.find(kind)) is not None:
            return re.sub(r"\s+", " ", found.get("message") or "")[:300]
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of a file's name, instead of the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=3600.0)
    told = parser.parse_args()
    files = [name for name in FILES if told.only in name] if told.only else []
    name = files[0] if files else FILES[told.seed % len(FILES)]
    print(msgspec.json.encode({**run_case(name, told.budget), "seed": told.seed}).decode())


if __name__ == "__main__":
    main()
