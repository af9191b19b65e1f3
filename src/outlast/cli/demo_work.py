"""What the demo does: one job for each file, which says what stands in it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, defaultdict, deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outlast.app import Outlast
from outlast.running import current

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["JOURNAL", "Facts", "Witness", "app", "facts_of", "files_in", "measure"]

JOURNAL = "OUTLAST_DEMO_JOURNAL"
"""Names the file to which each run writes ``start`` or ``end``, the worker it is in (its session)
and its job: a witness beside the store."""

LATEST = 1000
"""How many of a worker's last jobs are remembered: more than it can have under way."""

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
    _note("start")
    facts = facts_of(Path(folder, path))
    _note("end")
    return facts


def _note(word: str) -> None:
    journal = os.environ.get(JOURNAL)
    if journal is None:
        return
    line = f"{word} {os.getsid(0)} {current().id}\n"
    descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class Witness:
    """What the journal says of some jobs: how often each was begun and ended, and where.

    The journal may hold lines of other jobs: of a store that is gone, or of another folder.
    """

    def __init__(self, journal: Path, ids: Iterable[str]) -> None:
        self.starts: Counter[str] = Counter(dict.fromkeys(ids, 0))
        self.ends: Counter[str] = Counter(dict.fromkeys(self.starts, 0))
        self._journal = journal
        self._read = 0
        self._begun: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=LATEST))

    @property
    def interrupted(self) -> int:
        """Jobs begun more than once: a kill came before their first run was on record."""
        return sum(number > 1 for number in self.starts.values())

    @property
    def twice(self) -> int:
        """Jobs brought to their end more than once."""
        return sum(number > 1 for number in self.ends.values())

    def look(self) -> None:
        """Read what was written since the last look."""
        with suppress(FileNotFoundError), self._journal.open("rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
            self._read += len(whole) + bool(whole)
            for line in whole.decode().splitlines():
                word, session, job = line.split(" ")
                if job not in self.starts:
                    continue
                if word == "start":
                    self.starts[job] += 1
                    self._begun[int(session)].append(job)
                else:
                    self.ends[job] += 1

    def lately(self, session: int) -> list[str]:
        """The last jobs that a worker began, but for those that were interrupted before."""
        return [job for job in self._begun[session] if self.starts[job] == 1]
