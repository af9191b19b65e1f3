"""`outlast bench`: its rows, its floors and its exit code; nothing depends on how fast it is."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench import results

from outlast.cli import bench as bench_module
from outlast.cli import bench_raw
from outlast.cli.bench_figures import Figure, at_most, beside
from outlast.cli.bench_measure import FULL, QUICK, Bench, Rates, Sizes, in_turn
from outlast.cli.bench_processes import children, cpu_of, kill, memory_of, until

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

RAW = 1000.0
GOOD: dict[str, Any] = {
    "one": 701.0,
    "hundred": 5000.0,
    "bulk": 251.0,
    "drain": 251.0,
    "many": 801.0,
    "memory": 59.0,
    "delayed": 42.9,
    "same": 0.0039,
    "other": 0.019,
    "p99": 0.049,
    "cpu": 59e-6,
    "idle": 0.0049,
    "reopen": 0.249,
    "child": 0.99,
    "all": 0.99,
}
# One step too far, each by itself.
MISSED = {
    "one": 699.0,
    "hundred": 4999.0,
    "bulk": 249.0,
    "drain": 249.0,
    "many": 799.0,
    "memory": 60.1,
    "delayed": 43.1,
    "same": 0.0041,
    "other": 0.0201,
    "p99": 0.0501,
    "cpu": 61e-6,
    "idle": 0.0051,
    "reopen": 0.251,
    "child": 1.01,
    "all": 1.01,
}
FLOORS = len(MISSED)


class Fixed(Bench):
    """Measures nothing and answers at once."""

    figures = GOOD
    seen: Sizes

    def __enter__(self) -> Fixed:
        Fixed.seen = self.sizes
        return self

    def enqueue(self, how: str) -> Rates:
        return Rates(ours=self.figures.get(how, 1.0), yardstick=RAW)

    def drain(self, processes: int = 1) -> Rates:
        return Rates(ours=self.figures["drain"], yardstick=RAW)

    def backlogs(self) -> dict[int, tuple[float, float]]:
        most = max(self.sizes.backlogs)
        return {
            self.sizes.few: (RAW, 99.0),
            most: (self.figures["many"], self.figures["memory"]),
        }

    def memory_of_delayed(self) -> Rates:
        return Rates(ours=self.figures["delayed"], yardstick=40.0)

    def latency(self) -> dict[str, Any]:
        other = {"p50": self.figures["other"], "p99": self.figures["p99"]}
        return {"same": {"p50": self.figures["same"], "p99": 1.0}, "other": other, "sync": 0.002}

    def cpu(self) -> float:
        return float(self.figures["cpu"])

    def idle(self) -> float:
        return float(self.figures["idle"])

    def reopen(self) -> float:
        return float(self.figures["reopen"])

    def recovery(self, whom: str) -> float:
        return float(self.figures[whom])


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> type[Fixed]:
    """The command with figures that just reach their floors; set ``figures`` for others."""
    monkeypatch.setattr(bench_module, "Bench", Fixed)
    monkeypatch.setattr(Fixed, "figures", dict(GOOD))
    return Fixed


def test_it_measures_for_real_and_leaves_everything_else_alone(tmp_path: Path) -> None:
    """Above all the store of a real program, which the environment names."""
    store = tmp_path / "shop.db"
    done = subprocess.run(
        [sys.executable, "-m", "outlast", "bench", "--only", "enqueue", "--quick", "--json"],
        cwd=tmp_path,
        env=os.environ | {"OUTLAST_URL": f"sqlite:///{store}"},
        capture_output=True,
        text=True,
        check=True,
    )
    rows = json.loads(done.stdout)
    assert [row["what"] for row in rows] == [
        "enqueue, one by one",
        "enqueue, 100 at once",
        "enqueue, 1,000 at once",
        "enqueue_many of 1,000",
    ]
    assert all(row["ratio"] > 0 for row in rows)
    assert [row["margin"] is None for row in rows] == [False, False, True, False]
    assert all(row["ok"] == (row["margin"] >= 1) for row in rows if row["margin"] is not None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_worker_drains_for_real(tmp_path: Path) -> None:
    with Bench(tmp_path, QUICK) as bench:
        rate, memory = bench.drain_some(200, 200)
    assert rate > 0
    assert memory > 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("fixed")
def test_every_floor_is_shown_and_reached(shop: Shop) -> None:
    rows = json.loads(shop.ok("bench", "--check", "--json"))
    judged = [row for row in rows if row["ok"] is not None]
    assert len(judged) == FLOORS
    assert all(row["ok"] and row["floor"] for row in judged)
    table = shop.ok("bench", "--check")
    assert table.count("  pass\n") == FLOORS
    assert "FAIL" not in table


@pytest.mark.parametrize("name", MISSED)
def test_each_floor_can_be_missed(shop: Shop, fixed: type[Fixed], name: str) -> None:
    fixed.figures[name] = MISSED[name]
    result = shop.run("bench", "--check", "--json")
    assert result.exit_code == 1
    assert [row["ok"] for row in json.loads(result.stdout)].count(False) == 1
    assert shop.ok("bench").count("  FAIL\n") == 1, "without --check it is shown and no more"


def test_a_fast_disk_may_have_the_second_floor() -> None:
    """Far below 0.7 of the rate, but up to 250 us more for each call are allowed."""
    raw = 1e5
    for extra, reached in ((249e-6, True), (251e-6, False)):
        ours = 1 / (1 / raw + extra)
        assert (bench_module._one_by_one(ours=ours, yardstick=raw) >= 1) == reached
    assert bench_module._one_by_one(ours=2.0, yardstick=1.0) > 1


def test_sizes_and_runs_are_what_was_asked_for(shop: Shop, fixed: type[Fixed]) -> None:
    for options, sizes in ((), Sizes()), (("--quick",), QUICK), (("--full",), FULL):
        shop.ok("bench", *options)
        assert fixed.seen == sizes
    shop.ok("bench", "--quick", "--runs", "7")
    assert fixed.seen.runs == 7
    assert Sizes().runs >= 3
    assert max(FULL.backlogs) == 1_000_000
    assert shop.run("bench", "--quick", "--full").exit_code == 2


@pytest.mark.usefixtures("fixed")
def test_what_cannot_be_measured_here_is_said(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "PROC", shop.folder / "proc" / "status")
    result = shop.run("bench", "--json")
    assert {row["what"].split()[0] for row in json.loads(result.stdout)} == {
        "enqueue,", "enqueue_many", "drain,", "idle",
    }  # fmt: skip
    for part in bench_module.NEED_PROC:
        assert f"{part} is left out" in result.stderr


def test_both_take_turns_and_turns_at_going_first() -> None:
    order: list[str] = []
    values = iter([10.0, 1.0, 2.0, 50.0, 30.0, 3.0])

    def measure(name: str) -> float:
        order.append(name)
        return next(values)

    rates = in_turn(3, lambda: measure("raw"), lambda: measure("ours"))
    assert order == ["raw", "ours", "ours", "raw", "raw", "ours"]
    assert rates == {"ours": 2.0, "yardstick": 30.0}


def test_the_yardstick_takes_and_deletes_every_row_once(tmp_path: Path) -> None:
    path = tmp_path / "raw.db"
    bench_raw.fill(path, "payload", 250)
    work: list[str] = []
    assert bench_raw.drain(path, work.append) == 250
    assert work == ["payload"] * 250
    connection = sqlite3.connect(path)
    assert connection.execute("select count(*) from q").fetchone() == (0,)
    assert connection.execute("pragma journal_mode").fetchone() == ("wal",)
    connection.close()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_are_found_read_and_killed() -> None:
    worker = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert worker.pid in children(os.getpid())
        until(lambda: cpu_of(worker.pid) > 0 and memory_of(worker.pid) > 1, 60.0, worker)
        with pytest.raises(TimeoutError, match="within 0 s"):
            until(lambda: False, 0, worker)
        kill([worker.pid])
        with pytest.raises(TimeoutError, match="exit code -9"):
            until(lambda: False, 60.0, worker)
    finally:
        worker.kill()
        worker.communicate()


def test_a_margin_is_one_at_the_floor() -> None:
    assert at_most(60, 60) == 1
    assert at_most(60, 0) > 1, "nothing used is no division by nothing"
    assert beside("x", 40.0, 100.0, least=0.4).ok
    assert beside("x", 39.0, 100.0, least=0.4).ok is False
    assert beside("x", 39.0, 100.0).ok is None


# -- bench/results.py


def rows(*margins: float | None) -> list[results.Row]:
    return [Figure(f"figure {m}", "1/s", "2/s", 0.5, "0.25", m).as_dict() for m in margins]


def test_the_page_holds_every_row_and_what_it_was_measured_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(results, "PEERS", ("msgspec",))
    facts = results.machine((1e-3, 0.5), (2e-3, 9.5))
    text = results.page(facts, {"jobs": rows(2.0, None), "queues": rows(0.5)}, "a remark")
    assert "| figure 2.0 | 1/s | 2/s | 0.50 | 0.25 | 2.00 | pass |" in text
    assert "| figure None | 1/s | 2/s | 0.50 | 0.25 |  |  |" in text
    assert "| figure 0.5 | 1/s | 2/s | 0.50 | 0.25 | 0.50 | **FAIL** |" in text
    assert "| fdatasync of 4 KiB | 1000 us before, 2000 us after |" in text
    assert all(f"| {name} | {value} |" in text for name, value in facts.items())
    assert "a remark" in text


def test_every_floor_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert results.say({"jobs": rows(2.0, None)})
    assert not results.say({"jobs": rows(2.0), "queues": rows(0.5)})
    out = capsys.readouterr().out
    assert out.count("pass") == 2
    assert "FAIL  figure 0.5" in out
    assert "2 floors, 1 missed" in out


@pytest.mark.parametrize("program", ["raise SystemExit(1)", "print('[]')", "raise SystemExit(2)"])
def test_what_gave_no_figures_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """A program that crashes exits with 1, as one whose floors are missed does."""
    monkeypatch.setattr(results, "CACHE", tmp_path)
    with pytest.raises(SystemExit) as ended:
        results.measure("jobs", ["-c", program])
    assert ended.value.code == 2


def test_figures_below_their_floor_are_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "CACHE", tmp_path)
    found = rows(0.5)
    program = f"print({json.dumps(found)!r}); raise SystemExit(1)"
    assert results.measure("jobs", ["-c", program]) == found
