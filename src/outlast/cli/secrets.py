"""Finds the secrets a command was given, and takes them out of whatever is about to be shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus, unquote, unquote_plus

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MASK", "has_password", "passwords", "redact"]

MASK = "***"
SHORTEST = 6
"""A bare word shorter than this isn't searched for: it would black out half of every page."""

# Up to the last @ of the word: a password may hold / and @ unencoded.
_USERINFO = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"<>/?#:@]*):([^\s'\"<>]*)@")
_PARAMETER = re.compile(
    r"([?&;\s](?:ssl)?(?:password|passwd|pwd|passfile|secret|token|api_?key)=)([^&\s'\"<>#;]+)",
    re.IGNORECASE,
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the passwords of the URLs in it, and without these secrets."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    text = _USERINFO.sub(rf"\1:{MASK}@", text)
    return _PARAMETER.sub(rf"\1{MASK}", text)


def has_password(text: str) -> bool:
    """Whether there is a URL with a password in it."""
    return redact(text) != text


def passwords(url: str) -> list[str]:
    """The passwords of a URL in every spelling they may turn up in, longest first.

    A password that also stands elsewhere in the URL in plain sight (as the user's name, say) or is
    very short hides nothing, and masking it everywhere would make the output useless: it is only
    masked inside URLs.
    """
    found = [match[2] for match in _USERINFO.finditer(url)]
    found += [match[2] for match in _PARAMETER.finditer(url)]
    plain = redact(url)
    spellings: set[str] = set()
    for password in found:
        for clear in {password, unquote(password), unquote_plus(password)}:
            spellings |= {clear, quote(clear, safe=""), quote(clear), quote_plus(clear)}
    return sorted((s for s in spellings if len(s) >= SHORTEST and s not in plain), key=len)[::-1]
