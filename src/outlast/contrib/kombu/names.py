"""Names of Celery's queues as names of ours, and back."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

__all__ = ["LONGEST", "our_name", "their_name"]

LONGEST = 128
_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_OTHER = re.compile(r"[^A-Za-z0-9_.-]")
_CODED = re.compile(r"((?::[0-9a-f]{2})+)")


@lru_cache(maxsize=1024)
def our_name(queue: str) -> str:
    """The name under which the store has a queue: other characters stand there as ``:40``.

    A name that is too long then ends with a digest of itself, so that two never share a line.
    """
    if _PLAIN.fullmatch(queue):
        return queue
    name = _OTHER.sub(_code, queue) or ":"
    if len(name) > LONGEST:
        name = f"{name[:80]}:.{hashlib.sha256(queue.encode()).hexdigest()[:32]}"
    return name


def their_name(name: str) -> str:
    """The queue's own name, but for those that were too long."""
    return "" if name == ":" else _CODED.sub(_decode, name)


def _code(found: re.Match[str]) -> str:
    return "".join(f":{byte:02x}" for byte in found[0].encode())


def _decode(found: re.Match[str]) -> str:
    return bytes.fromhex(found[0].replace(":", "")).decode(errors="replace")
