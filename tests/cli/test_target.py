"""How a command finds its store, and that looking never makes one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from outlast.job import Job, Status
from outlast.store import Ledger, offers
from outlast.stores import connect

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
        ("amqp://localhost/a/b", "%2F for a /"),
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
    store_elsewhere(stocked, "other")
    assert not json.loads(stocked.ok("jobs", "--json", "--namespace", "other"))["jobs"]
    assert stocked.run("show", "job-1", "--namespace", "other").exit_code == 3


def store_elsewhere(shop: Shop, namespace: str) -> None:
    """A job in another namespace, and away with it."""

    async def go() -> None:
        store = connect(shop.url, namespace=namespace)
        await store.open()
        await store.add([Job(id="there")])
        assert offers(store, Ledger)
        await store.purge("default", [Status.QUEUED])
        await store.close()

    asyncio.run(go())


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("jobs",),
        ("show", "job-1"),
        ("workers",),
        ("retry", "job-1"),
        ("cancel", "job-1"),
        ("purge", "default", "--yes"),
        ("pause", "default"),
    ],
)
def test_a_namespace_that_is_not_there_is_no_empty_one(
    stocked: Shop, command: tuple[str, ...]
) -> None:
    store_elsewhere(stocked, "other")
    result = stocked.run(*command, "--namespace", "othr")
    assert result.exit_code == 3
    assert (
        "nothing was ever stored in namespace 'othr'; the namespaces here are default, other;"
        " did you mean 'other'?" in result.stderr
    )
    assert stocked.run(*command).exit_code != 3, "it was that, and not the command"


def test_a_new_store_has_no_namespaces_to_confuse(shop: Shop) -> None:
    shop.do(lambda store, _: store.depth("default"))
    assert "No job was ever stored" in shop.ok("status", "--url", shop.url, "--namespace", "first")


def test_an_app_has_its_own_namespace(shop: Shop) -> None:
    result = shop.run("status", "--app", "shop:app", "--namespace", "other")
    assert result.exit_code == 2
    assert "--app has a namespace of its own" in result.stderr


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
