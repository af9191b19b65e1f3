"""The scripts: read from the folder ``lua``, put together, and called by their digest."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["digest", "texts"]

_PARTS = {
    "add": ("base", "insert", "add"),
    "claim": ("base", "claim"),
    "idle": ("base", "idle"),
    "look": ("base", "look"),
    "moving": ("base", "insert", "moving"),
    "prune": ("base", "prune"),
    "recover": ("base", "recover"),
    "recover_worker": ("base", "recover_worker"),
    "renew": ("base", "renew"),
    "scan": ("base", "scan"),
    "shelf": ("base", "shelf"),
    "settle": ("base", "insert", "settle"),
    "steer": ("base", "steer"),
    "steps": ("base", "steps"),
}


@cache
def texts() -> Mapping[str, str]:
    """Each script by its digest, as the server knows it."""
    return {hashlib.sha1(text.encode()).hexdigest(): text for text in _named().values()}


@cache
def digest(name: str) -> str:
    """What a script is called by."""
    return hashlib.sha1(_named()[name].encode()).hexdigest()


@cache
def _named() -> Mapping[str, str]:
    folder = files(__package__) / "lua"
    return {
        name: "\n".join((folder / f"{part}.lua").read_text() for part in parts)
        for name, parts in _PARTS.items()
    }
