"""Runs the whole suite in two parts and prints the time each folder took, then pytest's summary."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

NO_TESTS = 5  # pytest's exit code when nothing was collected


def part(folder: Path, name: str, *args: str) -> tuple[int, float]:
    """Runs pytest, its report in ``folder``; its exit code and the seconds it took."""
    started = time.monotonic()
    print(f"\n== tests {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={folder / name}.xml", *args]
    code = subprocess.run(command, check=False).returncode
    return (0 if code == NO_TESTS else code), time.monotonic() - started


def folder_of(case: ElementTree.Element) -> str:
    """The part of the suite a test belongs to: its folder in tests/, or its file."""
    names = case.get("classname", "").split(".")
    return names[1] if len(names) > 1 else names[0]


def tally(reports: list[Path]) -> tuple[dict[str, int], dict[str, float]]:
    """How many tests passed, failed and were skipped, and the seconds of tests by folder."""
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            kinds = {child.tag for child in case}
            bad = kinds & {"failure", "error"}
            counts["failed" if bad else "skipped" if "skipped" in kinds else "passed"] += 1
            seconds[folder_of(case)] += float(case.get("time", 0))
    return counts, seconds


def main() -> int:
    """The exit code: that of the first part that failed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # One more than there are processors: many tests wait for disks, servers and the killed.
        workers = str(max(2, os.cpu_count() or 2) + 1)
        alone, alone_took = part(folder, "alone", "-n", "0", "-m", "alone")
        beside, beside_took = part(
            folder,
            "beside",
            "-n",
            workers,
            "--dist",
            "worksteal",
            "-m",
            "not alone",
            "--durations=15",
        )
        counts, seconds = tally(sorted(folder.glob("*.xml")))
    print(f"\nminutes: alone {alone_took / 60:.1f}, side by side {beside_took / 60:.1f}")
    for where, took in sorted(seconds.items(), key=lambda item: -item[1]):
        print(f"  {took / 60:5.2f}  {where}")
    print("total: {passed} passed, {failed} failed, {skipped} skipped".format(**counts))
    return alone or beside


if __name__ == "__main__":
    sys.exit(main())
