"""`outlast backup`: a whole copy, made while others write."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

from outlast.job import Job

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


def test_the_copy_is_a_store_of_its_own(stocked: Shop) -> None:
    stocked.add(*(Job(id=f"more-{n}", task="t") for n in range(200)))
    text = stocked.ok("backup", "copy.db")
    path = stocked.folder / "copy.db"
    assert str(path) in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    copied = json.loads(stocked.ok("jobs", "--json", "-n", "500", "--url", "sqlite:///copy.db"))
    original = json.loads(stocked.ok("jobs", "--json", "-n", "500"))
    assert copied == original
    assert len(copied["jobs"]) == 201


def test_it_is_described_for_programs(stocked: Shop) -> None:
    found = json.loads(stocked.ok("backup", "copy.db", "--json"))
    assert found["jobs"] == 1
    assert found["path"] == str(stocked.folder / "copy.db")


def test_nothing_is_overwritten(stocked: Shop) -> None:
    (stocked.folder / "copy.db").write_text("precious")
    result = stocked.run("backup", "copy.db")
    assert result.exit_code == 2
    assert "never overwrites" in result.stderr
    assert (stocked.folder / "copy.db").read_text() == "precious"


def test_a_folder_that_is_not_there(stocked: Shop) -> None:
    result = stocked.run("backup", "nowhere/copy.db")
    assert result.exit_code != 0
    assert f"the folder {stocked.folder / 'nowhere'} does not exist; make it first" in result.stderr
    assert "unexpected" not in result.stderr
