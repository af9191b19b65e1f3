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

_WORD = re.compile(r"[^\s'\"<>]+")
_SCHEME_ENDS = re.compile(r"[a-zA-Z0-9+.-]://")
_USER = re.compile(r"[^/?#:@]*")
_RECORDS = re.compile(r"([?&;]records=)([^&\s'\"<>]+)")
_PARAMETER = re.compile(
    r"([?&;\s](?:ssl_?)?(?:password|passwd|pwd|passfile|secret|token|api_?key)=)([^&\s'\"<>#;]+)",
    re.IGNORECASE,
)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without the passwords of the URLs in it, and without these secrets."""
    for secret in secrets:
        text = text.replace(secret, MASK)
    if "://" in text:
        text = _RECORDS.sub(_without_records, text)
        text = _WORD.sub(_without_password, text)
    return _PARAMETER.sub(rf"\1{MASK}", text)


def _without_records(found: re.Match[str]) -> str:
    """A broker's URL holds that of its records, encoded or not."""
    clear = unquote(found[2])
    plain = redact(clear)
    return found[0] if plain == clear else found[1] + quote(plain, safe=":/?&=*,")


def _without_password(word: re.Match[str]) -> str:
    at = _password_at(word[0])
    return word[0] if at is None else word[0][: at[0]] + MASK + word[0][at[1] :]


def _password_at(word: str) -> tuple[int, int] | None:
    """Where the password of a URL stands in a word without spaces, if there is one.

    It goes up to the last @, since it may hold / and @ unencoded. Whatever the word holds, each
    character is looked at a few times at most: it may be a megabyte of what a stranger stored.
    """
    end = word.rfind("@")
    for scheme in _SCHEME_ENDS.finditer(word, 0, max(0, end)):
        user = _USER.match(word, scheme.end())
        if user is not None and user.end() < end and word[user.end()] == ":":
            return user.end() + 1, end
    return None


def has_password(text: str) -> bool:
    """Whether there is a URL with a password in it."""
    return redact(text) != text


def passwords(url: str) -> list[str]:
    """The passwords of a URL in every spelling they may turn up in, longest first.

    A password that also stands elsewhere in the URL in plain sight (as the user's name, say) or is
    very short hides nothing, and masking it everywhere would make the output useless: it is only
    masked inside URLs.
    """
    broker, within, records = url.partition("records=")
    if within:
        mine = {*passwords(broker), *passwords(unquote(records))}
        return sorted(mine, key=len)[::-1]
    words = [match[0] for match in _WORD.finditer(url)]
    found = [word[at[0] : at[1]] for word in words if (at := _password_at(word)) is not None]
    found += [match[2] for match in _PARAMETER.finditer(url)]
    plain = redact(url)
    spellings: set[str] = set()
    for password in found:
        for clear in {password, unquote(password), unquote_plus(password)}:
            spellings |= {clear, quote(clear, safe=""), quote(clear), quote_plus(clear)}
    return sorted((s for s in spellings if len(s) >= SHORTEST and s not in plain), key=len)[::-1]
