"""`outlast bench`: what this machine and this disk give, beside what they could give at most."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from outlast.cli.bench_figures import COLUMNS, Figure, at_most, beside
from outlast.cli.bench_measure import FULL, QUICK, Bench, Sizes

if TYPE_CHECKING:
    from outlast.cli.screen import Screen

__all__ = ["PARTS", "bench"]

# What each part measures, in the order in which it is run.
PARTS = ("enqueue", "drain", "backlog", "latency", "cost", "recovery")
# These look into worker processes, and know but one way to do so.
NEED_PROC = ("backlog", "cost", "recovery")
PROC = Path("/proc/self/status")


@click.command(short_help="Measure this machine and this disk.")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Just this part; repeatable.")
@click.option("--quick", is_flag=True, help="Few jobs and one run: shows that it works, no more.")
@click.option("--full", is_flag=True, help="A backlog of a million jobs as well; takes minutes.")
@click.option("--check", is_flag=True, help="Exit with 1 if a figure misses its floor.")
@click.option("--runs", type=click.IntRange(1, 99), help="The median of so many counts (3).")
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
@click.pass_obj
def bench(
    screen: Screen,
    folder: str | None,
    only: tuple[str, ...],
    quick: bool,
    full: bool,
    check: bool,
    runs: int | None,
    as_json: bool,
) -> int:
    """Measure in FOLDER (the current one if you name none), on its disk.

    Beside each figure stands the yardstick: the plainest loop on apsw that does the same durable
    work, measured in the same run. Ratios can be compared between machines, rates can't.
    """
    if quick and full:
        raise click.UsageError("--quick and --full ask for opposite things: give one of them")
    sizes = QUICK if quick else FULL if full else Sizes()
    sizes = sizes if runs is None else replace(sizes, runs=runs)
    with (
        tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=folder or ".") as scratch,
        Bench(Path(scratch), sizes) as measuring,
    ):
        found = _measure(measuring, only or PARTS, screen)
    if as_json:
        screen.json([figure.as_dict() for figure in found])
    else:
        numbers = ("outlast", "yardstick", "ratio")
        screen.table(COLUMNS, [figure.cells() for figure in found], numbers=numbers)
    return int(check and any(figure.ok is False for figure in found))


def _measure(bench: Bench, parts: tuple[str, ...], screen: Screen) -> list[Figure]:
    figures = _Figures(bench)
    for part in parts:
        if part in NEED_PROC and not PROC.exists():
            screen.note(f"{part} is left out: it looks into {PROC.parent}, which isn't there")
            continue
        screen.note(f"measuring {part} ...")
        getattr(figures, part)()
    return figures.found


class _Figures:
    """The figures, each with its floor: what every release of outlast has to reach."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.found: list[Figure] = []

    def enqueue(self) -> None:
        one = self.bench.enqueue("one")
        hundred = self.bench.enqueue("hundred")
        thousand = self.bench.enqueue("thousand")
        bulk = self.bench.enqueue("bulk")
        self.found += [
            beside(
                "enqueue, one by one",
                **one,
                floor="0.70, or yardstick + 250 us",
                margin=_one_by_one(**one),
            ),
            beside(
                "enqueue, 100 at once",
                **hundred,
                floor="0.40, and 5 times one commit each",
                margin=min(
                    hundred["ours"] / hundred["yardstick"] / 0.4,
                    hundred["ours"] / one["yardstick"] / 5,
                ),
            ),
            beside("enqueue, 1,000 at once", **thousand),
            beside("enqueue_many of 1,000", **bulk, least=0.25),
        ]

    def drain(self) -> None:
        one, two = self.bench.drain(1), self.bench.drain(2)
        self.found += [
            beside("drain, 1 worker process", **one, least=0.25),
            beside("drain, 2 worker processes", **two),
        ]

    def backlog(self) -> None:
        found = self.bench.backlogs()
        few = self.bench.sizes.few
        for size, (rate, _) in found.items():
            if size != few:
                floor = f"0.80 of that with {few:,}" if size > few else ""
                least = 0.8 if size > few else None
                what = f"drain with {size:,} queued"
                self.found.append(beside(what, rate, found[few][0], floor=floor, least=least))
        most = max(found)
        memory = found[most][1]
        self.found.append(
            Figure(
                f"memory of a worker, {most:,} queued",
                f"{memory:.0f} MiB",
                floor="under 60 MiB",
                margin=at_most(60, memory),
            )
        )
        self._delayed()

    def _delayed(self) -> None:
        memory = self.bench.memory_of_delayed()
        self.found.append(
            Figure(
                f"memory of a worker, {self.bench.sizes.delayed:,} delayed",
                f"{memory['ours']:.1f} MiB",
                f"{memory['yardstick']:.1f} MiB",
                memory["ours"] / memory["yardstick"],
                "no more than with none (3 MiB are noise)",
                at_most(memory["yardstick"] + 3, memory["ours"]),
            )
        )

    def latency(self) -> None:
        found = self.bench.latency()
        limit = 1.5 * found["sync"] + 1e-3
        self.found += [
            Figure(
                "idle latency, same process",
                f"{found['same']['p50'] * 1e3:.2f} ms",
                f"{found['sync'] * 1e3:.2f} ms",
                found["same"]["p50"] / found["sync"],
                f"1.5 fsync + 1 ms = {limit * 1e3:.2f} ms",
                at_most(limit, found["same"]["p50"]),
            ),
            Figure(
                "idle latency, other process",
                f"{found['other']['p50'] * 1e3:.2f} ms",
                floor="under 20 ms",
                margin=at_most(0.02, found["other"]["p50"]),
            ),
            Figure(
                "idle latency, other process, p99",
                f"{found['other']['p99'] * 1e3:.2f} ms",
                floor="under 50 ms",
                margin=at_most(0.05, found["other"]["p99"]),
            ),
        ]

    def cost(self) -> None:
        cpu, idle = self.bench.cpu(), self.bench.idle()
        self.found += [
            Figure(
                "CPU of a no-op job, all in",
                f"{cpu * 1e6:.1f} us",
                floor="at most 60 us",
                margin=at_most(60e-6, cpu),
            ),
            Figure(
                "CPU of an idle worker",
                f"{idle:.2%} of a core",
                floor="under 0.5 %",
                margin=at_most(0.005, idle),
            ),
        ]

    def recovery(self) -> None:
        reopen = self.bench.reopen()
        self.found.append(
            Figure(
                f"first claim of {self.bench.sizes.reopen:,} jobs after SIGKILL",
                f"{reopen * 1e3:.0f} ms",
                floor="within 250 ms",
                margin=at_most(0.25, reopen),
            )
        )
        self._again("a killed process's job starts again", self.bench.recovery("child"))
        self._again("the same, supervisor killed too", self.bench.recovery("all"))

    def _again(self, what: str, seconds: float) -> None:
        margin = at_most(1.0, seconds)
        self.found.append(Figure(what, f"{seconds:.2f} s", floor="within 1 s", margin=margin))


def _one_by_one(ours: float, yardstick: float) -> float:
    """Either of two floors will do: on a fast disk the share is no fair measure."""
    share = ours / yardstick / 0.7
    extra = 1 / ours - 1 / yardstick
    return share if extra <= 0 else max(share, 250e-6 / extra)
