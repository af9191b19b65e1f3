"""MODULE:APP and MODULE:TASK: what was wrong with them, and what was probably meant."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


def error_of(shop: Shop, *args: str) -> str:
    result = shop.run(*args)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("shp:app", ["no module 'shp'", "did you mean 'shop'", "OLDER"]),
        ("shop:ap", ["no 'ap'", "did you mean 'app'"]),
        ("shop:plain", ["a function", "not an Outlast app", "app"]),
        ("shop:send_receipt", ["AsyncTask", "not an Outlast app"]),
        ("shop.py:app", ["names a file", "shop:app"]),
        ("./shop.py", ["names a file", "shop"]),
        ("sh op:app", ["MODULE:NAME"]),
        ("shop.inner:app", ["no module 'shop.inner'"]),
        ("nowhere.inner:app", ["no module 'nowhere'"]),
    ],
)
def test_a_wrong_app_says_what_was_found(shop: Shop, spec: str, said: list[str]) -> None:
    text = error_of(shop, "status", "--app", spec)
    for part in said:
        assert part.replace("OLDER", str(shop.folder)) in text


def test_a_module_may_have_a_dash_in_its_name(shop: Shop) -> None:
    """No import statement takes that, but importlib does, and so does ``python -m``."""
    (shop.folder / "my-shop.py").write_text(
        "from outlast import Outlast\napp = Outlast('memory://dash')\n"
    )
    assert "memory://dash" in shop.ok("status", "--app", "my-shop:app")
    assert "did you mean 'my-shop'" in error_of(shop, "status", "--app", "my-shp:app")


def test_an_app_without_a_name_must_be_the_only_one(shop: Shop) -> None:
    (shop.folder / "two.py").write_text(
        "from outlast import Outlast\na = Outlast('memory://a')\nb = Outlast('memory://b')\n"
    )
    (shop.folder / "none.py").write_text("x = 1\n")
    text = error_of(shop, "status", "--app", "two")
    assert "a, b" in text
    assert "two:APP" in text
    assert "no app" in error_of(shop, "status", "--app", "none")
    assert "memory://a" in shop.ok("status", "--app", "two:a")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import nowhere_to_be_found\n", ["ModuleNotFoundError", "nowhere_to_be_found", "line 1"]),
        ("\n1 / 0\n", ["ZeroDivisionError", "division by zero", "broken.py, line 2"]),
        ("def f(:\n", ["SyntaxError", "broken.py", "line 1"]),
        ("raise SystemExit(3)\n", ["ended the program", "line 1"]),
        ("from shop import nothing\n", ["ImportError", "nothing", "line 1"]),
    ],
)
def test_a_module_that_cannot_be_imported_shows_the_cause(
    shop: Shop, code: str, said: list[str]
) -> None:
    (shop.folder / "broken.py").write_text(code)
    text = error_of(shop, "status", "--app", "broken:app")
    assert "broken can't be imported" in text or "ended the program" in text
    for part in said:
        assert part in text
    assert len(text.strip().splitlines()) == 1
    assert "Traceback" in shop.run("status", "--app", "broken:app", "--debug").stderr


def test_the_current_folder_comes_first(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    other = shop.folder / "other"
    other.mkdir()
    (other / "shop.py").write_text("app = 'the wrong one'\n")
    monkeypatch.setattr(sys, "path", [str(other), *sys.path])
    assert shop.run("status", "--app", "shop:app").exit_code == 4  # no store yet, but an app


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("shop:send_recept", ["did you mean 'send_receipt'"]),
        ("shop:plain", ["not a task", "@app.task"]),
        ("shop:app", ["not a task", "add_up, send_receipt"]),
        ("shop", ["MODULE:TASK"]),
    ],
)
def test_a_wrong_task_says_what_was_found(shop: Shop, spec: str, said: list[str]) -> None:
    text = error_of(shop, "enqueue", spec)
    for part in said:
        assert part in text
