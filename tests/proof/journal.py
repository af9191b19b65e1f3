"""The outside witness: what producers, workers and the rig saw, one line an event."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Event", "Journal", "Kind", "Memo", "Witness", "read"]

Kind = Literal[
    "invoke",  # about to add the job
    "ok",  # the add returned: from here on the job must never be lost
    "fail",  # the add was refused: the job must never be seen
    "info",  # the add ended in doubt: the job may or may not be there
    "start",  # a run began
    "effect",  # the run did what can't be undone
    "end",  # the run is over; `note` is "done", "error", "snooze", "cancel" or "stopped"
    "settle",  # about to hand in a verdict; `note` is its kind
    "settled",  # the verdict was accepted
    "refused",  # the verdict was not: the claim was no longer ours
    "cancel",  # somebody asked for the job to be given up
    "purge",  # somebody asked for the ended job to be deleted
    "revive",  # somebody asked for an ended job to be queued again
    "birth",  # a process of the fleet is there; `target` is its parent
    "kill",  # SIGKILL sent to the process `target`
    "stop",  # SIGSTOP sent to `target`
    "term",  # SIGTERM or SIGINT sent to `target`
    "cut",  # the power went: every process of the fleet died
    "calm",  # no more faults from here on
]


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a journal. ``at`` is the machine's monotonic clock, the same in every process."""

    kind: Kind
    at: float
    pid: int
    id: str = ""
    attempt: int = 0
    token: str = ""
    note: str = ""
    lane: str = ""
    target: int = 0


class Witness(ABC):
    """Whoever is told what happens."""

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process that the events are written down for."""

    @abstractmethod
    def now(self) -> float:
        """The moment of what is told now."""

    @abstractmethod
    def keep(self, event: Event) -> None:
        """Put it on record."""

    def write(
        self,
        kind: Kind,
        id: str = "",
        *,
        attempt: int = 0,
        token: str = "",
        note: str = "",
        lane: str = "",
        target: int = 0,
    ) -> None:
        """Put an event of this moment on record."""
        event = Event(kind, self.now(), self.pid, id, attempt, token, note, lane, target)
        self.keep(event)


class Memo(Witness):
    """Keeps events in memory, at moments that ``now`` tells, as process number ``pid``."""

    def __init__(self, now: Callable[[], float], pid: int = 1) -> None:
        self.events: list[Event] = []
        self._now = now
        self._pid = pid

    @property
    def pid(self) -> int:
        return self._pid

    def now(self) -> float:
        return self._now()

    def keep(self, event: Event) -> None:
        self.events.append(event)


class Journal(Witness):
    """Appends events to a file of this process alone, each with one ``write``.

    The page cache outlives a killed process, so what ``write`` returned from is on record. A
    forked child gets a file of its own at its first event.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._encoder = msgspec.json.Encoder()
        self._pid = 0
        self._file = -1

    @property
    def pid(self) -> int:
        return os.getpid()

    def now(self) -> float:
        return time.monotonic()

    def keep(self, event: Event) -> None:
        if event.pid != self._pid:
            self._open(event.pid)
        line = self._encoder.encode(event) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError("the journal took half a line: is the disk full?")

    def _open(self, pid: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # Process ids come round again: the name must not, or a cut line would run into a new one.
        name = f"{pid}-{os.urandom(4).hex()}.jsonl"
        self._file = os.open(self._folder / name, flags, 0o600)
        self._pid = pid

    def close(self) -> None:
        if self._file >= 0 and self._pid == os.getpid():
            os.close(self._file)
        self._file, self._pid = -1, 0


def read(folder: Path) -> list[Event]:
    """All events of all processes in the order of time; a last line cut by a kill is left out."""
    decoder = msgspec.json.Decoder(Event)
    events: list[Event] = []
    for path in folder.glob("*.jsonl"):
        lines = path.read_bytes().split(b"\n")
        events.extend(decoder.decode(line) for line in lines[:-1] if line)
    events.sort(key=lambda event: event.at)
    return events
