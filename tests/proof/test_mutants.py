"""The tests on trial: bugs are planted in a copy of the product, and each has to be noticed.

A harness that has never caught a bug proves nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.proof.mutants.generic import PICKED, Pick, find
from tests.proof.mutants.plant import PACKAGE, Bug, is_caught, plant, run_planted
from tests.proof.mutants.planted import BUGS
from tests.proof.mutants.planted_postgres import POSTGRES_BUGS
from tests.proof.mutants.planted_redis import REDIS_BUGS
from tests.proof.processes import import_path

pytestmark = pytest.mark.timeout(600)

ALL = (*BUGS, *POSTGRES_BUGS, *REDIS_BUGS)
# CI has 20 minutes for everything: ``scripts/soak --only mutants`` plants all of them.
HERE = [bug for number, bug in enumerate(BUGS) if number % 3 < 2]
HERE_POSTGRES, HERE_REDIS, HERE_PICKED = POSTGRES_BUGS[:2], REDIS_BUGS[:4], PICKED[:10]


TESTS = Path(__file__).parents[1]


def named(bug: Bug) -> str:
    return bug.name


def told(pick: Pick) -> str:
    return f"{pick.file} {pick.rule}: {pick.text}"


@pytest.mark.parametrize("bug", HERE, ids=named)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    assert is_caught(bug) == ""


@pytest.mark.needs("redis")
@pytest.mark.parametrize("bug", HERE_REDIS, ids=named)
def test_a_bug_planted_in_the_redis_store_is_caught(bug: Bug) -> None:
    assert is_caught(bug) == ""


@pytest.mark.needs("servers")
@pytest.mark.parametrize("bug", HERE_POSTGRES, ids=named)
def test_a_bug_planted_in_the_postgresql_store_is_caught(bug: Bug) -> None:
    assert is_caught(bug) == ""


@pytest.mark.parametrize("pick", HERE_PICKED, ids=told)
def test_a_generated_bug_is_caught(pick: Pick) -> None:
    assert is_caught(find(pick)) == ""


def test_there_are_enough_of_them() -> None:
    assert len(HERE) >= 25
    assert len(HERE_PICKED) >= 10
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_each_has_its_place(tmp_path: Path) -> None:
    """Those too that are not planted here: the code moves on."""
    for bug in (*ALL, *(find(pick) for pick in PICKED)):
        file = tmp_path / "code"
        file.write_text((PACKAGE / bug.file).read_text())
        plant(file, bug)


def test_without_a_bug_the_same_tests_pass() -> None:
    """Else a broken copy would catch everything."""
    whole = Bug("none", "", "", "", ("-k", "sqlite", "tests/conformance/test_settle.py"))
    outcome = run_planted(whole)
    assert outcome.code == 0, outcome.output


def test_a_bug_whose_place_is_gone_says_so() -> None:
    bug = Bug("gone", "job.py", "no such text", "", ())
    with pytest.raises(LookupError, match="plant the bug anew"):
        run_planted(bug)
    with pytest.raises(LookupError, match="pick another"):
        find(Pick("worker/crew.py", "commit", "nothing"))


def test_what_tests_start_finds_the_planted_copy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a bug is not there in the very process that is to show it."""
    monkeypatch.setenv("PYTHONPATH", "planted")
    assert import_path(TESTS) == f"planted{os.pathsep}{TESTS}"
    monkeypatch.delenv("PYTHONPATH")
    assert import_path(TESTS) == str(TESTS)
    alone = '"PYTHONPATH": ' + "str("
    assert [path for path in TESTS.rglob("*.py") if alone in path.read_text()] == []


def test_planting_changes_that_place_alone(tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("a = 1\na = 1\nb = 2\n")
    plant(file, Bug("b", "", "b = 2", "b = 3", ()))
    plant(file, Bug("second a", "", "a = 1", "a = 9", (), at=6))
    assert file.read_text() == "a = 1\na = 9\nb = 3\n"
    with pytest.raises(LookupError):
        plant(file, Bug("a", "", "= ", "== ", ()))
