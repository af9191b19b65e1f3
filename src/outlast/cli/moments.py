"""Times as people write and read them: ages such as 15m or 2d, and moments in UTC."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import click

from outlast.limits import shown

__all__ = ["LONGEST", "age", "ago", "iso", "span"]

LONGEST = 100 * 365.0 * 86400
"""Seconds. A number of more digits than were meant would become a moment nobody can reckon with."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")


def age(text: str) -> float:
    """Seconds: a plain number, or one with a letter of s, m, h, d, w. Raises ``BadParameter``."""
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise click.BadParameter(f"{shown(text)} is no duration; write 90, 15m, 2h, 3d or 1w")
    seconds = float(found[1]) * _UNITS[found[2] or "s"]
    if seconds > LONGEST:
        raise click.BadParameter(f"{shown(text)} is longer than 100 years")
    return seconds


def span(seconds: float) -> str:
    """A duration in two units at most: ``4s``, ``3m12s``, ``2d4h``."""
    if not math.isfinite(seconds):
        return "no time" if seconds != math.inf else "ages"  # somebody wrote into the file
    whole = max(0, int(seconds))
    parts: list[str] = []
    for unit in ("d", "h", "m", "s"):
        count, whole = divmod(whole, int(_UNITS[unit]))
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return "".join(parts[:2]) or "0s"


def ago(moment: float | None, now: float) -> str:
    """How long ago, or how soon, a moment is; empty for None."""
    if moment is None:
        return ""
    return f"{span(now - moment)} ago" if moment <= now else f"in {span(moment - now)}"


def iso(moment: float | None) -> str | None:
    """A moment as ISO 8601 in UTC, or None."""
    if moment is None:
        return None
    try:
        return datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(moment)  # beyond the year 9999: still better shown than not
