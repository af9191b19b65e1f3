"""`outlast check`: naive tasks are found out with their line and a remedy, mended ones pass."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

NAIVE = {
    "charge_naively": ("[42]", 'bank.ask(f"charge {order}")', "hand it current().idempotency_key"),
    "mail_naively": ("[42]", "to the buyer of", "drops the second one"),
    "count_naively": ('["tea"]', "with closing(sqlite3", "a table with a unique key"),
    "append_naively": ('["hello"]', "file.write(", "os.replace()"),
}
MENDED = {
    "charge": "[42]",
    "mail_once": '{"order": 42}',
    "count_once": '["tea"]',
    "append_once": '["hello"]',
}


@pytest.fixture
def twice(shop: Shop) -> Shop:
    shutil.copy(EXAMPLES / "twice.py", shop.folder / "twice.py")
    return shop


# A run that was cut short closes none of its files.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("task", NAIVE)
def test_the_naive_form_is_found_out(twice: Shop, task: str) -> None:
    args, line, remedy = NAIVE[task]
    found = twice.run(
        "check", f"twice:{task}", "--args", args, "--observe", "twice:world",
        "--setup", "twice:clear",
    )  # fmt: skip
    assert found.exit_code == 1, found.output
    assert "may not run twice: cut short behind line" in found.output
    assert line in found.output
    assert remedy in found.output
    assert not (twice.folder / "twice.db").exists(), "the task's own store is not touched"


@pytest.mark.parametrize("task", MENDED)
def test_the_mended_form_passes(twice: Shop, task: str) -> None:
    found = twice.run(
        "check", f"twice:{task}", "--args", MENDED[task], "--observe", "twice:world",
        "--setup", "twice:clear",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    assert "may run twice:" in found.output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["twice:charge", "--args", "[42]"], "--observe"),
        (["twice:charge", "--args", "[", "--observe", "twice:world"], "is not JSON"),
        (["twice:charge", "--args", "[42]", "--observe", "twice:wrold"], "did you mean"),
        (["twice:charge", "--args", "[42]", "--observe", "twice"], "write MODULE:FUNC"),
        (["twice:charge", "--args", "[42]", "--observe", "twice:folder"], "not a function"),
    ],
)
def test_a_wrong_command_line_is_explained(twice: Shop, options: list[str], says: str) -> None:
    found = twice.run("check", *options)
    assert found.exit_code == 2, found.output
    assert says in found.output
