"""Close matches for names that were mistyped."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean", "listed"]

SHOWN = 12
LONGEST = 512
"""Characters of a name that may have been mistyped; looking for what is close to it takes time."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``; did you mean 'x'?``, or nothing if nothing is close."""
    from difflib import get_close_matches

    if len(name) > LONGEST:
        return ""
    close = get_close_matches(name, sorted(set(known)), n=3)
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def listed(known: Iterable[str]) -> str:
    """The names that are there, for a sentence, or ``none``."""
    names = sorted(set(known))
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more if names else "none"
