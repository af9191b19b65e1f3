"""Where the store is: the URL from the environment or a file, checked, with its whole path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from outlast.errors import ConfigurationError
from outlast.stores.urls import EXAMPLES, is_url, parse, redact, with_records

if TYPE_CHECKING:
    from outlast.store import Durability

__all__ = ["find_url", "pin"]

URL = "OUTLAST_URL"
URL_FILE = "OUTLAST_URL_FILE"
LONGEST = 65_536
"""Characters of such a file that are read: it may be a device by mistake."""


def find_url() -> str | None:
    """The URL that the environment gives, or None: in ``OUTLAST_URL``, else in a file it names.

    Raises ``ConfigurationError`` if the file can't be read, or what is found is no URL at all; the
    message then doesn't repeat it, since people put a bare password there by mistake.
    """
    url = os.environ.get(URL, "").strip()
    if url:
        return _seen_as_url(url, f"{URL} is set to what")
    name = os.environ.get(URL_FILE, "").strip()
    if not name:
        return None
    try:
        with Path(name).open(encoding="utf-8") as file:
            url = file.read(LONGEST).strip()
    except (OSError, UnicodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not a text"
        raise ConfigurationError(
            f"{URL_FILE} names {name!r}, which can't be read: {reason}"
        ) from None
    if not url:
        raise ConfigurationError(f"{URL_FILE} names {name!r}, which is empty: put the URL into it")
    return _seen_as_url(url, f"{URL_FILE} names {name!r}, and what stands there")


def _seen_as_url(text: str, what: str) -> str:
    if not is_url(text):
        raise ConfigurationError(f"{what} is not a store URL: use {EXAMPLES}")
    return text


def pin(url: str, durability: Durability | None) -> str:
    """The same URL, checked, and with the folder as it is now where a file's name is relative.

    A program that changes its folder later must not get a second, empty store. Raises
    ``ConfigurationError`` if no store can be at that URL, or if it asks for another durability.
    """
    address = parse(url)
    if durability is not None and address.durability not in (None, durability):
        raise ConfigurationError(
            f"{redact(url)!r} and the argument durability={durability} disagree: say it once"
        )
    if address.records is not None:
        pinned = pin(address.records, durability)
        if pinned == address.records:
            return url
        place, _, query = url.partition("?")
        others = "&".join(each for each in query.split("&") if not each.startswith("records="))
        return with_records(f"{place}?{others}" if others else place, pinned)
    if address.scheme != "sqlite" or os.path.isabs(address.path):
        return url
    try:
        folder = os.getcwd()
    except OSError as error:
        raise ConfigurationError(
            f"the URL is relative to the current folder, which is gone ({error.strerror})"
        ) from None
    # Joined and not normalized: the store has its own opinion about `..` in a path.
    path = quote(os.path.join(folder, address.path))
    query = "" if address.durability is None else f"?durability={address.durability}"
    return f"sqlite:///{path}{query}"
