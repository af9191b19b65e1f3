"""`outlast bench`: what this machine and this disk give, beside what they could give at most."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from outlast.cli import bench_raw
from outlast.cli.bench_measure import Bench
from outlast.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.cli.screen import Screen

__all__ = ["PARTS", "bench"]

# What each part measures, in the order in which it is run.
PARTS = ("enqueue", "drain", "backlog", "latency", "cost", "recovery")


@click.command(short_help="Measure this machine and this disk.")
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False))
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Just this part; repeatable.")
@click.option("--full", is_flag=True, help="A backlog of a million jobs; takes minutes.")
@click.option("--check", is_flag=True, help="Exit with 1 if a figure misses its floor.")
@click.option("--runs", type=click.IntRange(1, 99), default=3, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The answer as JSON.")
@click.pass_obj
def bench(
    screen: Screen,
    folder: str | None,
    only: tuple[str, ...],
    full: bool,
    check: bool,
    runs: int,
    as_json: bool,
) -> int:
    """Measure in FOLDER (the current one if you name none), on its disk.

    Beside each figure stands the yardstick: the plainest loop on apsw that does the same durable
    work, measured in the same run. Ratios can be compared between machines, rates can't.
    """
    with tempfile.TemporaryDirectory(prefix="outlast-bench-", dir=folder or ".") as scratch:
        rows = _Rows(Bench(Path(scratch), runs=runs), full=full)
        for part in only or PARTS:
            screen.note(f"measuring {part} ...")
            getattr(rows, part)()
    if as_json:
        screen.json(rows.found)
    else:
        columns = ("what", "outlast", "yardstick", "ratio", "floor", "")
        cells = [tuple(map(str, row.values())) for row in rows.found]
        screen.table(columns, cells, numbers=("outlast", "yardstick", "ratio"))
    missed = [row for row in rows.found if row["ok"] == "MISSED"]
    return int(check and bool(missed))


class _Rows:
    """The figures, each with its floor. The floors are those of the project's first issue."""

    def __init__(self, bench: Bench, *, full: bool) -> None:
        self.bench = bench
        self.full = full
        self.found: list[dict[str, Any]] = []

    def _row(
        self, what: str, ours: str, raw: str = "", ratio: float | None = None, floor: str = "",
        ok: bool | None = None,
    ) -> None:  # fmt: skip
        self.found.append(
            {
                "what": what,
                "outlast": ours,
                "yardstick": raw,
                "ratio": "" if ratio is None else f"{ratio:.2f}",
                "floor": floor,
                "ok": "" if ok is None else "ok" if ok else "MISSED",
            }
        )

    def _rates(
        self, what: str, rates: dict[str, float], floor: str, ok: Callable[[float, float], bool]
    ) -> None:
        ours, raw = rates["ours"], rates["raw"]
        self._row(what, f"{ours:,.0f}/s", f"{raw:,.0f}/s", ours / raw, floor, ok(ours, raw))

    def enqueue(self) -> None:
        one = self.bench.enqueue("one")
        self._rates(
            "enqueue, one by one",
            one,
            "0.70, or yardstick + 250 us",
            lambda ours, raw: ours / raw >= 0.7 or 1 / ours - 1 / raw <= 250e-6,
        )
        self._rates(
            "enqueue, 100 at once",
            self.bench.enqueue("hundred"),
            "0.40, and 5 times one commit each",
            lambda ours, raw: ours / raw >= 0.4 and ours >= 5 * one["raw"],
        )
        thousand = self.bench.enqueue("thousand")
        self._row(
            "enqueue, 1,000 at once",
            f"{thousand['ours']:,.0f}/s",
            f"{thousand['raw']:,.0f}/s",
            thousand["ours"] / thousand["raw"],
        )
        self._rates(
            "enqueue_many of 1,000",
            self.bench.enqueue("bulk"),
            "0.25",
            lambda ours, raw: ours / raw >= 0.25,
        )

    def drain(self) -> None:
        for processes in (1, 2):
            rates = self.bench.drain(40_000, processes)
            what = f"drain, {processes} worker process{'es' if processes > 1 else ''}"
            if processes == 1:
                self._rates(what, rates, "0.25", lambda ours, raw: ours / raw >= 0.25)
            else:
                ours, raw = rates["ours"], rates["raw"]
                self._row(what, f"{ours:,.0f}/s", f"{raw:,.0f}/s", ours / raw)

    def backlog(self) -> None:
        large = 1_000_000 if self.full else 200_000
        few, many, memory = [], [], []
        for _ in range(self.bench.runs):
            few.append(self.bench.drain_some(50_000, 30_000)["rate"])
            found = self.bench.drain_some(large, 30_000)
            many.append(found["rate"])
            memory.append(found["memory"])
        small, big = sorted(few)[len(few) // 2], sorted(many)[len(many) // 2]
        self._row(
            f"drain with {large:,} queued",
            f"{big:,.0f}/s",
            f"{small:,.0f}/s",
            big / small,
            "0.80 of that with 50,000",
            big / small >= 0.8,
        )
        self._row(
            f"memory of a worker, {large:,} queued",
            f"{max(memory):.0f} MiB",
            floor="under 60 MiB",
            ok=max(memory) < 60,
        )
        empty, delayed = self.bench.memory(1), self.bench.memory(100_000, delay=86400.0)
        self._row(
            "memory of a worker, 100,000 delayed",
            f"{delayed:.0f} MiB",
            f"{empty:.0f} MiB",
            floor="none more than without",
            ok=delayed <= empty + 3,
        )

    def latency(self) -> None:
        sync = bench_raw.sync_time(self.bench.folder, SystemClock().monotonic)
        same = self.bench.latency(200, same_process=True)
        limit = 1.5 * sync + 1e-3
        self._row(
            "idle latency, same process",
            f"{same['p50'] * 1e3:.2f} ms",
            f"{sync * 1e3:.2f} ms",
            floor=f"1.5 fsync + 1 ms = {limit * 1e3:.2f} ms",
            ok=same["p50"] <= limit,
        )
        other = self.bench.latency(200, same_process=False)
        self._row(
            "idle latency, other process",
            f"{other['p50'] * 1e3:.2f} ms",
            floor="under 20 ms",
            ok=other["p50"] < 0.02,
        )
        self._row(
            "the same, p99",
            f"{other['p99'] * 1e3:.2f} ms",
            floor="under 50 ms",
            ok=other["p99"] < 0.05,
        )

    def cost(self) -> None:
        cpu = sorted(self.bench.cpu(30_000) for _ in range(self.bench.runs))[self.bench.runs // 2]
        self._row(
            "CPU of a no-op job, all in",
            f"{cpu * 1e6:.0f} us",
            floor="at most 60 us",
            ok=cpu <= 60e-6,
        )
        idle = self.bench.idle(5.0)
        self._row("an idle worker", f"{idle:.2%} of a core", floor="under 0.5 %", ok=idle < 0.005)

    def recovery(self) -> None:
        reopen = sorted(self.bench.reopen(100_000) for _ in range(3))[1]
        self._row(
            "reopen 100,000 jobs after SIGKILL, first claim",
            f"{reopen * 1e3:.0f} ms",
            floor="within 250 ms",
            ok=reopen <= 0.25,
        )
        again = max(self.bench.recovery() for _ in range(3))
        self._row(
            "a killed worker's job starts again",
            f"{again:.2f} s",
            floor="within 1 s",
            ok=again <= 1.0,
        )
