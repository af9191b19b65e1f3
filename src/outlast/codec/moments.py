"""Dates with zones: how datetime and time travel as text, and which zone names are believed."""

from __future__ import annotations

import functools
import os.path
import re
import zoneinfo
from datetime import UTC, datetime, time, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from outlast.codec.kinds import Kind, Misfit, type_name

__all__ = ["MomentKind", "ZoneKind"]

# RFC 9557 writes the zone's name after the offset; keys that begin with "_" are free for us.
_SUFFIXED = re.compile(r"([^\[\]]{1,40})(?:\[([^\[\]=]{1,64})\])?(\[_fold=1\])?", re.ASCII)
_ZONE_NAME = re.compile(r"[A-Za-z0-9_+-]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,3}", re.ASCII)


class MomentKind(Kind):
    """A datetime or a time: wall clock, offset, and the zone by its name.

    ``2024-10-27T02:30:00+01:00[Europe/Berlin][_fold=1]``: the wall clock and the zone are what
    counts; the offset is for people, as zone rules may change while a job waits.
    """

    __slots__ = ("of",)

    def __init__(self, of: type[datetime] | type[time]) -> None:
        super().__init__(type_name(of))
        self.of = of
        _packaged_zones()

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((self.of,))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not self.of:
            raise self.misfit(value)
        zone = value.tzinfo
        text: str = value.isoformat()
        if zone is not None and zone is not UTC:
            text += _zone_suffix(zone)
        return text + "[_fold=1]" if value.fold else text

    def load(self, wire: Any) -> Any:
        if type(wire) is not str:
            raise self.misfit_wire(wire)
        parts = _SUFFIXED.fullmatch(wire)
        if parts is None:
            raise Misfit(f"not the text of a {self.name}")
        text, zone, fold = parts.groups()
        try:
            value = self.of.fromisoformat(text)
        except ValueError as error:
            raise Misfit(f"not the text of a {self.name}") from error
        if zone is not None:
            value = value.replace(tzinfo=_find_zone(zone))
        return value.replace(fold=1) if fold else value


class ZoneKind(Kind):
    """A time zone itself, by its name."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("zoneinfo.ZoneInfo")
        _packaged_zones()

    @property
    def accepts(self) -> frozenset[type]:
        return frozenset((ZoneInfo,))

    def dump(self, value: Any, room: int) -> Any:
        if type(value) is not ZoneInfo:
            raise self.misfit(value)
        return _zone_suffix(value)[1:-1]

    def load(self, wire: Any) -> Any:
        if type(wire) is not str:
            raise self.misfit_wire(wire)
        return _find_zone(wire)


def _zone_suffix(zone: tzinfo) -> str:
    if type(zone) is ZoneInfo:
        # A zone made from a file has no name, whatever the type hints say.
        if not zone.key:
            raise Misfit("a ZoneInfo without a name")
        _find_zone(zone.key)
        return f"[{zone.key}]"
    if type(zone) is timezone:
        if zone.tzname(None) != str(timezone(zone.utcoffset(None))):
            raise Misfit("a timezone with a name of its own, which would be lost")
        return ""
    raise Misfit(
        f"a zone of type {type_name(type(zone))}; use zoneinfo.ZoneInfo or datetime.timezone"
    )


@functools.lru_cache(maxsize=1024)
def _find_zone(name: str) -> ZoneInfo:
    # ZoneInfo looks an unknown name up by importing a package made from it, so only names that are
    # there may reach it. Only those stay in the cache: what a stranger writes can't fill it.
    if not _known(name):
        raise Misfit("no such time zone on this machine")
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError) as error:
        raise Misfit("no such time zone on this machine") from error


def _known(name: str) -> bool:
    if _ZONE_NAME.fullmatch(name) is None:
        return False
    if name in _packaged_zones():
        return True
    return any(os.path.isfile(os.path.join(folder, name)) for folder in zoneinfo.TZPATH)


@functools.cache
def _packaged_zones() -> frozenset[str]:
    """The names in the tzdata package, if it is installed: read when a task is registered."""
    import importlib.resources  # takes milliseconds, and most programs carry no zones

    try:
        listed = importlib.resources.files("tzdata").joinpath("zones").read_text("utf-8")
    except (ModuleNotFoundError, FileNotFoundError):
        return frozenset()
    return frozenset(listed.split())
