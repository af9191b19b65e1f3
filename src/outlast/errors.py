"""Every error outlast raises, in one tree.

OutlastError
  ConfigurationError        bad URL, bad option, extra not installed
  StoreError
    StoreUnavailable        can't reach it; trying again is sensible
      StoreFull             no space left; nothing was stored
      StoreStopped          given up: its files were taken away, or its disk failed
    StoreClosed             used before open or after close
    StoreMoved              its jobs are in another store, or on their way there
    StoreDamaged            the file is not a database, or is corrupt
    SchemaMismatch          older or newer than this code
    DurabilityError         the store guarantees less than was asked for
    EnqueueUncertain        may or may not be stored (has .ids); repeating is safe
    Unsupported             this store can't; nothing was done
  MoveRefused               jobs can't be moved as things are; nothing was changed
  TaskError
    UnknownTask, DuplicateTask
  CodecError
    EncodeError             (also a TypeError)
    DecodeError             (keeps the bytes)
  JobError
    JobNotFound
    KeyConflict             same key, other arguments
    KeyRepeated             same key, and a repeat was not wanted (has .id)
    JobFailed               (has .failure)
    JobCancelled
    LeaseLost               inside a task whose lease went
    StepChanged             a step that was done with other arguments
Retry, Snooze, Cancel       raised by tasks to steer; not errors, not under the root
QueueEmpty, QueueFull       asyncio's own
QueueShutDown               asyncio's, ours before 3.13
"""

from __future__ import annotations

import asyncio
from asyncio import QueueEmpty, QueueFull
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from outlast.job import Failure

__all__ = [
    "Cancel",
    "CodecError",
    "ConfigurationError",
    "DecodeError",
    "DuplicateTask",
    "DurabilityError",
    "EncodeError",
    "EnqueueUncertain",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "KeyConflict",
    "KeyRepeated",
    "LeaseLost",
    "MoveRefused",
    "OutlastError",
    "QueueEmpty",
    "QueueFull",
    "QueueShutDown",
    "Retry",
    "SchemaMismatch",
    "Snooze",
    "StepChanged",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreMoved",
    "StoreStopped",
    "StoreUnavailable",
    "TaskError",
    "UnknownTask",
    "Unsupported",
]


class OutlastError(Exception):
    """The root of every error of outlast."""


class ConfigurationError(OutlastError):
    """A URL, an option or an installation is wrong; the message says what to change."""


class StoreError(OutlastError):
    """Something about the place where jobs live."""


class StoreUnavailable(StoreError):
    """The store can't be reached or stays locked; trying again is sensible."""


class StoreFull(StoreUnavailable):
    """The store has no space left (disk, quota); nothing was stored."""


class StoreStopped(StoreUnavailable):
    """This handle was given up: its files were taken away, or its disk failed again and again.

    Closing it and opening the store again is sensible, or putting back what was taken away.
    """


class StoreClosed(StoreError):
    """The store was used before ``open`` or after ``close``."""


class StoreMoved(StoreError):
    """The jobs of this store were moved to another, or are on their way; the message names it."""


class StoreDamaged(StoreError):
    """What stands at the URL is not a store of ours, or its contents are corrupt."""


class SchemaMismatch(StoreError):
    """The store was made by an older or a newer outlast than this one can serve."""


class DurabilityError(StoreError):
    """The store guarantees less than was asked for; the message says what to change."""


class EnqueueUncertain(StoreError):
    """The jobs may or may not be stored. Adding the same ids again is safe."""

    def __init__(self, message: str, ids: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.ids = tuple(ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.ids)


class Unsupported(StoreError):
    """This store can't do that. Nothing was done; the message names the way out."""


class MoveRefused(OutlastError):
    """Jobs can't be moved from one store to another as things are; nothing was changed."""


class TaskError(OutlastError):
    """Something about a registered function."""


class UnknownTask(TaskError):
    """No task of that name is registered."""


class DuplicateTask(TaskError):
    """Two functions claim one task name."""


class CodecError(OutlastError):
    """Arguments, items or results that can't be turned into bytes or back."""


class EncodeError(CodecError, TypeError):
    """A value can't be stored without changing it; nothing was stored."""


class DecodeError(CodecError):
    """Stored bytes don't fit the task's signature. The bytes are kept in ``.data``."""

    def __init__(self, message: str, data: bytes = b"") -> None:
        super().__init__(message)
        self.data = data

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.data)


class JobError(OutlastError):
    """Something about one job."""


class JobNotFound(JobError):
    """No job has that id: it never existed, or it was pruned."""


class KeyConflict(JobError):
    """The key belongs to a job with other arguments; nothing was stored."""


class KeyRepeated(JobError):
    """The key is held by the job ``.id``, and ``on_repeat="raise"``; nothing was stored."""

    def __init__(self, message: str, id: str = "") -> None:
        super().__init__(message)
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.id)


class JobFailed(JobError):
    """The job is dead. What killed it is in ``.failure``."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.failure)


class JobCancelled(JobError):
    """The job was cancelled, or expired before it could start."""


class LeaseLost(JobError):
    """Another worker may hold this job now: whatever this run still does won't count."""


class StepChanged(JobError):
    """A step of this job was done with other arguments than it is called with now."""


class Retry(Exception):
    """Raised by a task: fail this run and try again, after ``delay`` seconds if given.

    Without ``delay`` the task's retry policy says when. It counts as a failure, so a job whose
    attempts are spent is dead.
    """

    def __init__(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = delay
        self.reason = reason


class Snooze(Exception):
    """Raised by a task: not now, run me again after ``delay`` seconds. Spends no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(delay)
        self.delay = delay


class Cancel(Exception):
    """Raised by a task: give this job up for good, without calling it a failure."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


if TYPE_CHECKING:

    class QueueShutDown(Exception):
        """``put`` or ``get`` on a queue that was shut down."""

elif hasattr(asyncio, "QueueShutDown"):
    QueueShutDown = asyncio.QueueShutDown
else:

    class QueueShutDown(Exception):
        """``put`` or ``get`` on a queue that was shut down."""


# People import them from `outlast`, so that is where a traceback says they live.
for _name in __all__:
    if globals()[_name].__module__ == __name__:
        globals()[_name].__module__ = "outlast"
del _name
