"""Measures outlast's worker beside huey's on SQLite, in one run: `python bench/peers.py`.

Both drain no-op jobs with the same string argument out of a filled store, counted by the same code;
outlast records a result for each, huey none. huey's consumer has 4 threads, outlast's worker is one
process. They take turns, and the medians count. The exit code is 1 if the floor is missed.

Options: --runs N, --quick, --folder DIR (on the disk to measure), --json FILE.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.cli.bench_figures import Figure, beside
from outlast.cli.bench_measure import QUICK, Bench, Sizes, in_turn
from outlast.cli.bench_processes import until
from outlast.cli.bench_work import FOLDER, counts_in

if TYPE_CHECKING:
    from collections.abc import Iterator

FEWER = 8
"""huey drains a fraction of our jobs; the rate is a rate, and the run ends sooner."""

HERE = str(Path(__file__).resolve().parent)


def huey_drain(parent: Path, jobs: int) -> float:
    """Jobs a second that huey's consumer does."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        # Its module is found by name, in the consumer as well.
        environment = os.environ | {FOLDER: name, "PYTHONPATH": HERE}
        fill = [sys.executable, "-c", f"import huey_work; huey_work.fill({jobs})"]
        subprocess.run(fill, env=environment, check=True)
        with _consumer(environment) as consumer:
            until(lambda: counts_in(folder).number >= jobs, 300, consumer)
        return counts_in(folder).rate


@contextmanager
def _consumer(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = (sys.executable, "-m", "huey.bin.huey_consumer", "huey_work.huey")
    consumer = subprocess.Popen((*command, "-w", "4", "-k", "thread", "-q"), env=environment)
    try:
        yield consumer
    finally:
        consumer.terminate()
        consumer.wait()


def measure(parent: Path, sizes: Sizes) -> Figure:
    """Ours beside huey's."""
    jobs = sizes.drain
    with tempfile.TemporaryDirectory(dir=parent) as ours, Bench(Path(ours), sizes) as bench:
        rates = in_turn(
            sizes.runs,
            lambda: huey_drain(parent, max(100, jobs // FEWER)),
            lambda: bench.drain_some(jobs, jobs)[0],
        )
    return beside("drain, beside huey's SQLite worker", **rates, floor="10 times", least=10.0)


def main(arguments: list[str] | None = None) -> int:
    """Print the row; 1 if the floor is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(".cache/bench"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    sizes = QUICK if given.quick else Sizes()
    figure = measure(given.folder.resolve(), replace(sizes, runs=given.runs or sizes.runs))
    print("   ".join(cell for cell in figure.cells() if cell))
    if given.json:
        given.json.write_text(json.dumps([figure.as_dict()], indent=2))
    return int(figure.ok is False)


if __name__ == "__main__":
    sys.exit(main())
