"""Where zones come from: the system's files, or the tzdata package; and never from a message."""

from __future__ import annotations

import os.path
import shutil
import sys
import zoneinfo
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from outlast import DecodeError, EncodeError
from outlast.codec import ItemCodec, moments

if TYPE_CHECKING:
    from collections.abc import Iterator

# Used by no other test: two objects of one zone are two zones to datetime where the clock folds.
CHATHAM, LORD_HOWE = "Pacific/Chatham", "Australia/Lord_Howe"


@pytest.fixture
def only_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine without zone files, as Windows and the slimmest containers are, with tzdata."""
    package = tmp_path / "tzdata"
    for name in (CHATHAM, LORD_HOWE):
        source = next(p for p in (Path(d, name) for d in zoneinfo.TZPATH) if p.is_file())
        target = package / "zoneinfo" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        (target.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "zoneinfo" / "__init__.py").touch()
    (package / "zones").write_text(f"{CHATHAM}\n{LORD_HOWE}\n")
    trap = package / "zoneinfo" / "Trap"
    trap.mkdir()
    (trap / "__init__.py").write_text("raise SystemExit('imported')")
    for name in [name for name in sys.modules if name.split(".")[0] == "tzdata"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    folders = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=())
    yield
    zoneinfo.reset_tzpath(to=folders)
    forget()
    for name in [name for name in sys.modules if name.split(".")[0] == "tzdata"]:
        monkeypatch.delitem(sys.modules, name)


def forget() -> None:
    ZoneInfo.clear_cache(only_keys=[CHATHAM, LORD_HOWE])
    moments._find_zone.cache_clear()
    moments._packaged_zones.cache_clear()


@pytest.mark.usefixtures("only_a_package")
class TestOnlyAPackage:
    def test_its_zones_come_back(self) -> None:
        at = datetime(2024, 4, 7, 3, 0, tzinfo=ZoneInfo(CHATHAM), fold=1)
        codec = ItemCodec(datetime)
        back = codec.decode(codec.encode(at))
        assert (back, back.tzinfo.key, back.fold) == (at, CHATHAM, 1)

    def test_no_other_name_reaches_an_import(self) -> None:
        codec = ItemCodec(datetime)
        for name in ("Trap/Door", "Trap", "Foo/Bar"):
            with pytest.raises(DecodeError, match="no such time zone"):
                codec.decode(f'"2024-01-01T00:00:00[{name}]"'.encode())
        assert not [name for name in sys.modules if name.startswith("tzdata.zoneinfo.")]

    def test_a_file_that_is_gone_is_a_refusal(self) -> None:
        codec = ItemCodec(datetime)
        Path(sys.path[0], "tzdata", "zoneinfo", LORD_HOWE).unlink()
        with pytest.raises(DecodeError, match="no such time zone"):
            codec.decode(f'"2024-01-01T00:00:00[{LORD_HOWE}]"'.encode())


@pytest.mark.usefixtures("only_a_package")
def test_a_zone_this_machine_can_t_find_again_is_refused_at_enqueue(tmp_path: Path) -> None:
    with (tmp_path / "tzdata" / "zoneinfo" / LORD_HOWE).open("rb") as file:
        zone = ZoneInfo.from_file(file, key="Asia/Edo")
    with pytest.raises(EncodeError, match="no such time zone"):
        ItemCodec(datetime).encode(datetime(2024, 1, 1, tzinfo=zone))


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "/etc/passwd", "Europe/../UTC", "zone.tab", "a/b/c/d/e", "Ünter", "-\0"],
)
def test_what_is_no_zone_name_is_not_even_looked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[object] = []
    monkeypatch.setattr(os.path, "isfile", looked_for.append)
    with pytest.raises(DecodeError):
        ItemCodec(datetime).decode(f'"2024-01-01T00:00:00[{name}]"'.encode())
    assert looked_for == []


def test_without_the_package_it_names_no_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tzdata", None)
    assert moments._packaged_zones.__wrapped__() == frozenset()
