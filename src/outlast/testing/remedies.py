"""What to do about a line that may not be repeated, by the kind of effect that it seems to have."""

from __future__ import annotations

import re

__all__ = ["remedy_for"]

_STEP = 'current().step("name", function, ...)'

_REMEDIES = (
    (
        re.compile(r"mail|smtp|sendm|\bsend\w*\(|publish|notify", re.IGNORECASE),
        "It looks like a message: hand current().idempotency_key along as its id, so that whoever"
        f" takes it drops the second one; and make it a step, {_STEP}, so that it is rarely sent"
        " again at all",
    ),
    (
        re.compile(r"charge|pay|refund|\.(post|put|patch|request)\(|gateway|http", re.IGNORECASE),
        "It looks like a call of a service: hand it current().idempotency_key, and make it a step,"
        f" {_STEP}",
    ),
    (
        re.compile(r"sqlite3|execute\w*\(|commit\(|\bUPDATE\b|\bINSERT\b|cursor"),
        "It looks like a row in a database: write it in current().transaction() if it is in the"
        " store's own, or else write current().idempotency_key to a table with a"
        " unique key in the same transaction, and skip the rest if it is there",
    ),
    (
        re.compile(r"open\(|\.write\w*\(|print\(.*file="),
        "It looks like a file: write the whole of it to a new one, named for"
        " current().idempotency_key, and os.replace() it into place",
    ),
)


def remedy_for(line: str, function: str) -> str:
    """A sentence for people about a line of source, or about all that its function does."""
    for source in (line, function):
        for pattern, remedy in _REMEDIES:
            if pattern.search(source):
                return f"{remedy} (docs/running-twice.md)"
    return (
        f"Make that line safe to repeat: as a step, {_STEP}, with current().idempotency_key, or by"
        " looking first whether it was done (docs/running-twice.md)"
    )
