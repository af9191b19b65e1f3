"""What the demo does: one job for each file, which says what stands in it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from outlast.app import Outlast

__all__ = ["JOURNAL", "Facts", "app", "facts_of", "files_in", "measure"]

JOURNAL = "OUTLAST_DEMO_JOURNAL"
"""Names the file to which each run writes its start and its end: a witness beside the store."""

_PASSED_OVER = ("__pycache__", "site-packages", "dist-packages")

app = Outlast()


@dataclass(frozen=True)
class Facts:
    """What was found in one file; ``error`` instead, if it couldn't be read."""

    size: int
    sha256: str
    lines: int
    words: int
    error: str = ""


def files_in(folder: Path) -> list[str]:
    """The plain files below a folder, as sorted paths relative to it. Links are not followed.

    Without what Python itself may write while the demo runs, and without installed packages.
    """
    found = []
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _PASSED_OVER]
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink() and name.isprintable():
                found.append(str(path.relative_to(folder)))
    return sorted(found)


def facts_of(path: Path) -> Facts:
    """Read the file and count."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return Facts(0, "", 0, 0, error.strerror or "can't be read")
    return Facts(len(data), hashlib.sha256(data).hexdigest(), data.count(b"\n"), len(data.split()))


# The demo kills more often than any task should: it is not this task's fault.
@app.task(name="measure", max_crashes=None)
def measure(folder: str, path: str) -> Facts:
    """One file, in a thread of a worker that may be killed at any moment."""
    _note(b"start %s\n", path)
    facts = facts_of(Path(folder, path))
    _note(b"end %s\n", path)
    return facts


def _note(line: bytes, path: str) -> None:
    journal = os.environ.get(JOURNAL)
    if journal is None:
        return
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line % path.encode(errors="surrogateescape"))
    finally:
        os.close(descriptor)
