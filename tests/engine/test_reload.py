"""Finding out that a file of the program has changed: none is missed, whenever it happens."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

import pytest

from outlast.worker.reload import Files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that can be imported as ``shop_of_test_reload``."""
    monkeypatch.setattr(SourceFileLoader, "path_stats", SourceFileLoader.path_stats)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop_of_test_reload", raising=False)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "shop_of_test_reload.py"
    path.write_text("price = 1\n")
    return path


def load() -> None:
    importlib.invalidate_caches()
    importlib.import_module("shop_of_test_reload")


def test_nothing_has_changed(program: Path) -> None:
    files = Files()
    load()
    assert not files.look()
    assert not files.look()


def test_changed_before_the_first_look(program: Path) -> None:
    files = Files()
    load()
    program.write_text("price = 200\n")
    assert files.look()
    assert files.changed == str(program)


def test_corrected_before_anybody_looks(program: Path) -> None:
    """The failed import is reported, and the file saved before the report is worked off."""
    program.write_text("price = \n")
    files = Files()
    with pytest.raises(SyntaxError) as caught:
        load()
    program.write_text("price = 1\n")
    files.add_culprits(caught.value)
    assert files.look()
    assert files.changed == str(program)


def test_gone(program: Path) -> None:
    files = Files()
    load()
    assert not files.look()
    program.unlink()
    assert files.look()


def test_what_was_there_before_counts_from_the_first_look(program: Path) -> None:
    load()
    files = Files()
    assert not files.look()
    program.write_text("price = 300\n")
    assert files.look()
