"""The seeds that every run of the tests lives through, and that a seed is all there is to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.proof.sim.runs import explain
from tests.proof.sim.world import run_world

DENSE, SPARSE = range(72), range(28)
BATCH = 4
FOUND = [
    (1000033, "dense"),  # a job got again by who still ran it went back and lost its lane
    (1000077, "dense"),
    (3000241, "dense"),
    (7002805, "dense"),  # the same: since idle workers sleep, none of those shows it
    (7003213, "dense"),
    (7006970, "dense"),
    (2000145, "dense"),  # the simulation's own: a request that arrives twice is a fault as well
    (5000011, "sparse"),  # and a worker must not start while the others sleep
]


def batches(seeds: range) -> list[range]:
    return [seeds[at : at + BATCH] for at in range(0, len(seeds), BATCH)]


def live(seeds: range, profile: str) -> None:
    for seed in seeds:
        outcome = run_world(seed, profile)
        if outcome.broken:
            pytest.fail(explain(outcome), pytrace=False)
        assert outcome.acknowledged > 5
        assert outcome.runs > 5


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seeds", batches(DENSE), ids=str)
def test_dense_worlds_keep_all_promises(seeds: range) -> None:
    live(seeds, "dense")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seeds", batches(SPARSE), ids=str)
def test_sparse_worlds_keep_all_promises(seeds: range) -> None:
    live(seeds, "sparse")


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("seed", "profile"), FOUND)
def test_what_long_runs_have_found_is_mended(seed: int, profile: str) -> None:
    live(range(seed, seed + 1), profile)


@pytest.mark.parametrize("profile", ["dense", "sparse"])
def test_a_seed_has_one_history(profile: str) -> None:
    first, second = run_world(3, profile), run_world(3, profile)
    assert first.digest == second.digest
    assert first == second
    assert run_world(4, profile).digest != first.digest


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hashes", ["1", "2"])
def test_another_process_lives_the_same_history(hashes: str) -> None:
    """The order of sets of text differs from process to process, and must not matter."""
    command = [sys.executable, "-m", "tests.proof.sim", "--seed", "3", "--profile", "dense"]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[3],
        env={"PYTHONHASHSEED": hashes},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run_world(3, "dense").digest in done.stdout


def test_faults_are_what_was_planned() -> None:
    """Without any, nothing is uncertain, and nothing runs twice without having asked for it."""
    fine = run_world(3, "dense", [])
    assert fine.broken == {}
    assert fine.faults == []
    assert fine.zombies == 0
