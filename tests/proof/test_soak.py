"""The long run: its pieces add up in one file, and the report tells what is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.proof import soak
from tests.proof.report import Line, read_lines, render, write_report

if TYPE_CHECKING:
    from pathlib import Path


def line(kind: str, seed: int = 0, **numbers: object) -> Line:
    return Line(
        kind=kind,
        seed=seed,
        date="2026-01-01T00:00:00+00:00",
        commit="abc",
        machine="a machine",
        seconds=60.0,
        command=f"python -m tests.proof.{kind} --seed {seed}",
        numbers=dict(numbers),
    )


@pytest.mark.timeout(240)
def test_pieces_are_appended_and_seeds_go_on(tmp_path: Path) -> None:
    results = tmp_path / "results" / "results.jsonl"
    for _ in range(2):
        assert soak.soak(["kill"], minutes=0.1, piece=1.0, results=results) == 0
    lines = read_lines(results)
    assert [each.seed for each in lines] == list(range(len(lines)))
    assert len(lines) >= 2
    for each in lines:
        assert each.kind == "kill"
        assert each.number("rounds") > 0
        assert each.numbers["broken"] == {}
        assert each.command.startswith("python -m tests.proof.kill --rounds 1000000 --seed")


def test_a_rig_that_does_not_run_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = soak.Rig("tests.proof.journal.nowhere", lambda seed: [])
    monkeypatch.setitem(soak.RIGS, "none", rig)
    piece = soak.run_piece("none", 0, 1.0)
    assert piece.numbers["broken"] == {"rig": 1}


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    assert read_lines(results) == []
    soak._append(results, line("kill"))
    with results.open("ab") as file:
        file.write(b'{"kind": "cut", "se')
    assert [each.kind for each in read_lines(results)] == ["kill"]


def test_the_report_adds_up_and_does_not_hide_losses() -> None:
    page = render(
        [
            line("kill", 0, rounds=10, acknowledged=100, explained=3, broken={}),
            line("kill", 1, rounds=5, acknowledged=50, recovery_worst=0.4, broken={"stuck": 2}),
            line("replay", 0, replays=7, broken={"lost": 4}, stories=["drop after 3\nmore"]),
        ]
    )
    assert "| Kill -9, bare forks | 15 rounds | 0 | stuck 2 |" in page
    assert "| Power-loss replay | 7 images opened | 4 | 0 |" in page
    assert "  - drop after 3\n" in page
    assert "- jobs acknowledged: 150" in page
    assert "under fire all the while: 0.40 s" in page
    assert "- seeds: 0 to 1; 2 minutes" in page
    assert "python -m tests.proof.kill --seed 1" in page


def test_what_weaker_settings_lose_is_shown_apart(tmp_path: Path) -> None:
    lines = [
        line("cut", 0, load="outlast-power", rounds=9, acknowledged=90, lost=0, broken={}),
        line(
            "cut",
            1,
            load="outlast-process",
            rounds=3,
            acknowledged=30,
            lost=30,
            worst=20,
            predicted="process",
        ),
    ]
    write_report(lines, tmp_path / "docs" / "proof.md")
    page = (tmp_path / "docs" / "proof.md").read_text()
    assert "| Real power cuts | 9 rounds | 0 | 0 |" in page
    assert "| outlast-process | 3 | 30 | 30 | 20 | process |" in page
    assert "Nothing was run yet." in render([])


def test_what_was_mended_counts_no_more_and_is_told() -> None:
    old = line("sim", 0, seeds=7, broken={"stuck": 1})
    old.mended = "a job stood still; mended in abc"
    page = render([old, line("sim", 1, seeds=5, broken={})])
    assert "| Deterministic simulation | 5 seeds | 0 | 0 |" in page
    assert "- a job stood still; mended in abc (deterministic simulation: 1 pieces" in page


def test_each_path_is_shown_by_itself_and_comes_round_with_the_seeds() -> None:
    page = render(
        [
            line("nth", 0, acts="add_many,purge", points=5, broken={}),
            line("nth", 1, acts="add_many,purge", points=6, broken={"stuck": 2}),
            line("nth", 2, acts="back_up", points=7, broken={"lost": 1}),
        ]
    )
    assert "| add many, purge | 11 | 0 | 2 |" in page
    assert "| back up | 7 | 1 | 0 |" in page
    for kind, count in (("nth", len(soak.PATHS) * 3), ("calls", len(soak.CALLS) * soak.PARTS)):
        commands = {tuple(soak.RIGS[kind].words(seed)) for seed in range(count)}
        assert len(commands) == count
