"""A persistent task queue for Python, asyncio first: what was accepted is never lost.

Every name below is loaded when it is first used, so that `import outlast` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlast.app import Outlast
    from outlast.errors import (
        Cancel,
        CodecError,
        ConfigurationError,
        DecodeError,
        DuplicateTask,
        DurabilityError,
        EncodeError,
        EnqueueUncertain,
        JobCancelled,
        JobError,
        JobFailed,
        JobNotFound,
        KeyConflict,
        KeyRepeated,
        LeaseLost,
        MoveRefused,
        OutlastError,
        QueueEmpty,
        QueueFull,
        QueueShutDown,
        Retry,
        SchemaMismatch,
        Snooze,
        StepChanged,
        StoreClosed,
        StoreDamaged,
        StoreError,
        StoreFull,
        StoreMoved,
        StoreStopped,
        StoreUnavailable,
        TaskError,
        UnknownTask,
        Unsupported,
    )
    from outlast.handle import Handle
    from outlast.hooks import Hooks
    from outlast.job import Failure, Job, Progress, Status
    from outlast.outbox import AsyncInbox, Inbox, outbox_tables
    from outlast.queue import LifoQueue, PriorityQueue, Queue
    from outlast.retry import RetryPolicy
    from outlast.running import Current, current
    from outlast.sealing import Keys
    from outlast.store import Durability, Feature
    from outlast.task import AsyncTask, Call, SyncTask, Task

    __version__: str

__all__ = [
    "AsyncInbox",
    "AsyncTask",
    "Call",
    "Cancel",
    "CodecError",
    "ConfigurationError",
    "Current",
    "DecodeError",
    "DuplicateTask",
    "Durability",
    "DurabilityError",
    "EncodeError",
    "EnqueueUncertain",
    "Failure",
    "Feature",
    "Handle",
    "Hooks",
    "Inbox",
    "Job",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "KeyConflict",
    "KeyRepeated",
    "Keys",
    "LeaseLost",
    "LifoQueue",
    "MoveRefused",
    "Outlast",
    "OutlastError",
    "PriorityQueue",
    "Progress",
    "Queue",
    "QueueEmpty",
    "QueueFull",
    "QueueShutDown",
    "Retry",
    "RetryPolicy",
    "SchemaMismatch",
    "Snooze",
    "Status",
    "StepChanged",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreMoved",
    "StoreStopped",
    "StoreUnavailable",
    "SyncTask",
    "Task",
    "TaskError",
    "UnknownTask",
    "Unsupported",
    "__version__",
    "current",
    "outbox_tables",
]

_HOMES = {
    "AsyncInbox": "outbox",
    "AsyncTask": "task",
    "Call": "task",
    "Current": "running",
    "Durability": "store",
    "Failure": "job",
    "Feature": "store",
    "Handle": "handle",
    "Hooks": "hooks",
    "Inbox": "outbox",
    "Job": "job",
    "Keys": "sealing",
    "LifoQueue": "queue",
    "Outlast": "app",
    "PriorityQueue": "queue",
    "Progress": "job",
    "Queue": "queue",
    "RetryPolicy": "retry",
    "Status": "job",
    "SyncTask": "task",
    "Task": "task",
    "current": "running",
    "outbox_tables": "outbox",
}
"""Where a name lives, if it is no error: those are all in `errors`."""


if not TYPE_CHECKING:  # a type checker that sees it takes every name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'outlast' has no attribute {name!r}")
        if name == "__version__":
            value = import_module("importlib.metadata").version("outlast")
        else:
            value = getattr(import_module(f"outlast.{_HOMES.get(name, 'errors')}"), name)
        globals()[name] = value  # the next use finds it without asking here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
