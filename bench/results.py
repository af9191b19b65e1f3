"""Runs the three measurements and writes one table and one plot: `bench/run` calls it.

Options: --quick (a short run that shows that all of it works; written to .cache/bench instead),
--full (with a backlog of a million jobs), --folder DIR (on the disk to measure), --output DIR.
The exit code is 1 if a floor is missed, 2 if something could not be measured.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import sqlite3
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

from outlast.cli.bench_raw import sync_time

Row = dict[str, Any]

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache" / "bench"
PEERS = ("huey", "persist-queue", "litequeue")
TITLES = {
    "jobs": "Jobs, beside plain apsw",
    "peers": "Jobs, beside a peer",
    "queues": "Queues, beside plain apsw and peers",
}
HEAD = """\
# What was measured

Written by `bench/run`; what each figure means, and how far to trust it, is in
[README.md](README.md). Rates are this machine's; only ratios can be compared with another's.
"""


def commands(folder: Path, *, quick: bool, full: bool) -> dict[str, list[str]]:
    """What is run, by the name of its rows. Each but the first writes its JSON to a file."""
    size = ["--quick"] if quick else ["--full"] if full else []
    queues = ["--runs", "1", "--items", "6000"] if quick else ["--million"]
    return {
        "jobs": ["-m", "outlast", "bench", str(folder), "--check", "--json", *size],
        "peers": [str(HERE / "peers.py"), "--folder", str(folder), *(["--quick"] if quick else [])],
        "queues": [str(HERE / "queue_bench.py"), "--folder", str(folder), *queues],
    }


def measure(name: str, command: list[str]) -> list[Row]:
    """Run one of them and read its rows; ends the program if it gave none."""
    out = CACHE / f"{name}.json"
    out.unlink(missing_ok=True)
    print(f"== {TITLES[name]}", file=sys.stderr, flush=True)
    if name == "jobs":
        with out.open("wb") as file:
            code = subprocess.run([sys.executable, *command], stdout=file, check=False).returncode
    else:
        command = [*command, "--json", str(out)]
        code = subprocess.run([sys.executable, *command], check=False).returncode
    try:
        found: Any = json.loads(out.read_text())
    except (OSError, ValueError):
        found = None
    if code not in (0, 1) or not found:
        print(f"{name} could not be measured: exit code {code}, see above", file=sys.stderr)
        sys.exit(2)
    rows: list[Row] = found["figures"] if isinstance(found, dict) else found
    return rows


# -- the machine


def probe(folder: Path) -> tuple[float, float]:
    """Seconds of a sync on this disk, and how many programs want to run."""
    return sync_time(folder, time.perf_counter), os.getloadavg()[0]


def machine(before: tuple[float, float], after: tuple[float, float]) -> dict[str, str]:
    """Where and with what it was measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "outlast": f"{version('outlast')}{_commit()}",
        "machine": f"{cores} cores, {_processor()}, {platform.system()} {platform.release()}",
        "fdatasync of 4 KiB": f"{before[0] * 1e6:.0f} us before, {after[0] * 1e6:.0f} us after",
        "load average": f"{before[1]:.1f} before, {after[1]:.1f} after (this run is in it)",
        "Python": platform.python_version(),
        "SQLite": f"{apsw.sqlite_lib_version()} in apsw, {sqlite3.sqlite_version} for the peers",
        "peers": ", ".join(f"{name} {version(name)}" for name in PEERS),
    }


def _commit() -> str:
    command = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""  # not a clone: the version alone has to do
    return f" at {said}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


# -- the table and the plot


def verdict(row: Row) -> str:
    """Empty where there is no floor."""
    return "" if row["ok"] is None else "pass" if row["ok"] else "**FAIL**"


def table(rows: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| what | outlast | yardstick | ratio | floor | times the floor | |",
        "| --- | ---: | ---: | ---: | --- | ---: | --- |",
    ]
    for row in rows:
        ratio, margin = (
            "" if row[name] is None else f"{row[name]:.2f}" for name in ("ratio", "margin")
        )
        cells = (row["what"], row["outlast"], row["yardstick"], ratio, row["floor"], margin)
        lines.append(f"| {' | '.join(cells)} | {verdict(row)} |")
    return "\n".join(lines)


def page(facts: dict[str, str], found: dict[str, list[Row]], remark: str) -> str:
    """RESULTS.md."""
    parts = [HEAD, *([remark + "\n"] if remark else []), "| | |\n| --- | --- |"]
    parts[-1] += "".join(f"\n| {name} | {value} |" for name, value in facts.items()) + "\n"
    parts.append("![each figure against its floor](results.svg)\n")
    for name, rows in found.items():
        parts.append(f"## {TITLES[name]}\n\n{table(rows)}\n")
    return "\n".join(parts)


def plot(rows: list[Row], path: Path) -> None:
    """Each figure as a multiple of its floor: bars that end left of 1 have missed it."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "outlast"
    from matplotlib import pyplot as plt

    bars = [row for row in reversed(rows) if row["margin"] is not None]
    figure, axes = plt.subplots(figsize=(9, 1.2 + 0.3 * len(bars)), layout="constrained")
    colours = ["#2a7f62" if row["ok"] else "#c0392b" for row in bars]
    drawn = axes.barh([row["what"] for row in bars], [row["margin"] for row in bars], color=colours)
    axes.bar_label(drawn, [f"{row['margin']:.2f}" for row in bars], padding=3, fontsize=8)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(right=2 * max(row["margin"] for row in bars))
    axes.set_xlabel("times as good as its floor asks (the line); logarithmic")
    axes.set_title("outlast: each figure against its floor")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def say(found: dict[str, list[Row]]) -> bool:
    """Print each floor with pass or fail; whether all are reached."""
    rows = [row for each in found.values() for row in each if row["ok"] is not None]
    wide = max(len(row["what"]) for row in rows)
    for row in rows:
        state = "pass" if row["ok"] else "FAIL"
        print(f"{state}  {row['what']:{wide}}  {row['outlast']:>15}  floor: {row['floor']}")
    missed = sum(not row["ok"] for row in rows)
    print(f"{len(rows)} floors, {missed} missed")
    return not missed


def main(arguments: list[str] | None = None) -> int:
    """Measure, write, and say what was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="short, and worth nothing as a figure")
    size.add_argument("--full", action="store_true", help="a backlog of a million jobs as well")
    parser.add_argument("--folder", type=Path, default=CACHE, help="on the disk to measure")
    parser.add_argument("--output", type=Path, help="where the table and the plot go")
    given = parser.parse_args(arguments)
    output = given.output or (CACHE if given.quick else HERE)
    for folder in (CACHE, given.folder, output):
        folder.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another bench/run is measuring: two at once measure nothing", file=sys.stderr)
            return 2
        parts = commands(given.folder.resolve(), quick=given.quick, full=given.full)
        before = probe(given.folder)
        found = {name: measure(name, command) for name, command in parts.items()}
        facts = machine(before, probe(given.folder))
    remark = "**A quick run: it shows that all of it works, and no more.**" if given.quick else ""
    (output / "RESULTS.md").write_text(page(facts, found, remark))
    plot([row for rows in found.values() for row in rows], output / "results.svg")
    reached = say(found)
    print(f"written: {os.path.relpath(output / 'RESULTS.md')} and results.svg beside it")
    return int(not reached)


if __name__ == "__main__":
    sys.exit(main())
