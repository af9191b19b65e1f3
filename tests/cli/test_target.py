"""How a command finds its store, and that looking never makes one."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from outlast.job import Job

if TYPE_CHECKING:
    from tests.cli.conftest import Shop

LOOKING = [
    ("status",), ("jobs",), ("show", "x"), ("workers",), ("retry", "x"), ("retry", "--dead"),
    ("cancel", "x"), ("purge", "default", "--yes"), ("pause", "default", "--force"),
    ("resume", "default", "--force"), ("backup", "copy.db"), ("health",),
]  # fmt: skip


@pytest.mark.parametrize("args", LOOKING, ids=lambda args: args[0])
@pytest.mark.parametrize("how", ["url", "app", "environment"])
def test_no_command_creates_a_missing_file(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], how: str
) -> None:
    if how == "environment":
        monkeypatch.setenv("OUTLAST_URL", "sqlite:///shop.db")
    naming = {"url": ("--url", "sqlite:///shop.db"), "app": ("--app", "shop:app")}.get(how, ())
    result = shop.run(*args, *naming)
    assert result.exit_code == (1 if args[0] == "health" else 4)
    assert str(shop.folder / "shop.db") in result.output
    assert {path.name for path in shop.folder.iterdir()} - {"__pycache__"} == {"shop.py"}


def test_the_url_option_wins_over_the_environment(
    stocked: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTLAST_URL", "sqlite:///elsewhere.db")
    assert "shop.send_receipt" in stocked.ok("status", "--url", "sqlite:///shop.db")
    assert stocked.run("status").exit_code == 4


def test_the_url_may_stand_in_a_file(stocked: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_URL")
    (stocked.folder / "secret").write_text(stocked.url + "\n")
    monkeypatch.setenv("OUTLAST_URL_FILE", str(stocked.folder / "secret"))
    assert "shop.send_receipt" in stocked.ok("status")
    monkeypatch.setenv("OUTLAST_URL_FILE", str(stocked.folder / "nowhere"))
    result = stocked.run("status")
    assert result.exit_code == 2
    assert "nowhere" in result.stderr


def test_the_app_names_the_store(stocked: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_URL")
    assert "shop.send_receipt" in stocked.ok("status", "--app", "shop:app")
    assert "shop.send_receipt" in stocked.ok("status", "--app", "shop")


def test_without_any_name_it_says_how_to_give_one(shop: Shop) -> None:
    result = shop.run("status")
    assert result.exit_code == 2
    for way in ("--url", "--app", "OUTLAST_URL"):
        assert way in result.stderr


def test_two_names_are_refused(shop: Shop) -> None:
    result = shop.run("status", "--url", "sqlite:///shop.db", "--app", "shop:app")
    assert result.exit_code == 2
    assert "both" in result.stderr


def test_a_relative_file_is_shown_with_its_whole_path(stocked: Shop) -> None:
    text = stocked.ok("status", "--url", "sqlite:///shop.db")
    assert f"sqlite:///{stocked.folder / 'shop.db'}" in text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("shop.db", "sqlite:///"),
        ("sqlit:///shop.db", "sqlite:///"),
        ("sqlite://host/shop.db", "sqlite:///"),
        ("sqlite:///shop.db?durabilty=power", "durability"),
        ("postgresql://localhost/db", "not in this version"),
    ],
)
def test_a_wrong_url_says_what_to_write(shop: Shop, url: str, said: str) -> None:
    result = shop.run("status", "--url", url)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_file_of_another_program_is_left_alone(shop: Shop) -> None:
    with sqlite3.connect("other.db") as other:
        other.execute("CREATE TABLE t (x)")
    other.close()
    before = (shop.folder / "other.db").read_bytes()
    result = shop.run("status", "--url", "sqlite:///other.db")
    assert result.exit_code == 4
    assert "another program" in result.stderr
    (shop.folder / "text.db").write_text("no database at all" * 100)
    assert shop.run("status", "--url", "sqlite:///text.db").exit_code == 4
    assert (shop.folder / "other.db").read_bytes() == before


def test_a_namespace_is_a_world_of_its_own(stocked: Shop) -> None:
    assert json.loads(stocked.ok("status", "--json"))["lines"]
    assert not json.loads(stocked.ok("status", "--json", "--namespace", "other"))["lines"]
    assert stocked.run("show", "job-1", "--namespace", "other").exit_code == 3


def test_looking_needs_no_durability_but_changing_does(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a RAM disk a store can be read, with a note, and isn't written to as if it were safe."""
    from outlast.stores.sqlite import files

    shop.add(Job(id="job-1", task="t"))
    monkeypatch.setattr(files, "file_system", lambda _: "tmpfs")
    monkeypatch.setenv("OUTLAST_URL", shop.url)
    result = shop.run("jobs")
    assert result.exit_code == 0, result.output
    assert "job-1" in result.stdout
    assert "Note: " in result.stderr
    assert shop.run("cancel", "job-1").exit_code == 4
    assert shop.run("health").exit_code == 1
    assert shop.run("jobs", "--url", f"{shop.url}?durability=power").exit_code == 4
