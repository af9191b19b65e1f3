"""Records as the command line shows them: for JSON as plain data, for people as short texts."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from outlast.cli.moments import iso

if TYPE_CHECKING:
    from outlast.job import Depth, Failure, Job
    from outlast.store import Line, WorkerInfo

__all__ = [
    "depth_view",
    "failure_line",
    "is_alive",
    "job_view",
    "line_view",
    "value_text",
    "worker_view",
]


DEEPEST = 200
"""Stored JSON that is nested deeper is shown as bytes."""

SILENT = 60.0
"""A worker that was not seen for so many seconds is not counted as alive."""


def job_view(job: Job) -> dict[str, Any]:
    """All there is to know of a job; moments in UTC, bytes that are no JSON in base64."""
    return {
        "id": job.id,
        "state": str(job.status),
        "queue": job.queue,
        "task": job.task,
        **_bytes_view("arguments", job.payload),
        "codec": job.codec,
        "headers": dict(job.headers),
        "priority": job.priority,
        "lane": job.lane,
        "key": job.key,
        "attempt": job.attempt,
        "failures": job.failures,
        "max_attempts": job.max_attempts,
        "crashes": job.crashes,
        "max_crashes": job.max_crashes,
        "suspect": job.suspect,
        "timeout": job.timeout,
        "created_at": iso(job.created_at),
        "run_at": iso(job.run_at),
        "expires_at": iso(job.expires_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
        "worker": job.worker,
        "progress": None
        if job.progress is None
        else {"value": job.progress.value, "text": job.progress.text},
        "failure": None if job.failure is None else _failure_view(job.failure),
        **({} if job.result is None else _bytes_view("result", job.result)),
    }


def depth_view(depth: Depth) -> dict[str, int]:
    """The counts by state."""
    return {
        "ready": depth.ready,
        "delayed": depth.delayed,
        "running": depth.running,
        "done": depth.done,
        "dead": depth.dead,
        "cancelled": depth.cancelled,
    }


def line_view(line: Line) -> dict[str, Any]:
    """The jobs of one task in one queue, counted."""
    return {
        "queue": line.queue,
        "task": line.task,
        "paused": line.paused,
        **depth_view(line.depth),
        "oldest": iso(line.oldest),
    }


def is_alive(worker: WorkerInfo, now: float) -> bool:
    """Whether a worker was seen lately. They sign in every few seconds."""
    return now - worker.seen_at <= SILENT


def worker_view(worker: WorkerInfo, now: float) -> dict[str, Any]:
    """What a worker said of itself."""
    return {
        "id": worker.id,
        "host": worker.host,
        "pid": worker.pid,
        "queues": list(worker.queues),
        "tasks": list(worker.tasks),
        "concurrency": worker.concurrency,
        "running": worker.running,
        "started_at": iso(worker.started_at),
        "seen_at": iso(worker.seen_at),
        "alive": is_alive(worker, now),
        "version": worker.version,
        "library": worker.library,
    }


def failure_line(failure: Failure | None) -> str:
    """Why it ended badly, in one line."""
    if failure is None:
        return ""
    number = failure.signal if failure.signal is not None else failure.exit_code
    name = "signal" if failure.signal is not None else "exit code"
    told = number is None or f"{name} {number}" in failure.message
    return failure.line if told else f"{failure.line} ({name} {number})"


def value_text(data: bytes) -> str:
    """Stored bytes as people read them: the JSON, or what Python shows of the bytes."""
    view = _bytes_view("it", data)
    return json.dumps(view["it"], ensure_ascii=False) if "it" in view else repr(data)


def _failure_view(failure: Failure) -> dict[str, Any]:
    return {
        "kind": failure.kind,
        "type": failure.type,
        "message": failure.message,
        "traceback": failure.traceback,
        "signal": failure.signal,
        "exit_code": failure.exit_code,
    }


def _bytes_view(name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
        if _is_shallow(value):
            json.dumps(value, allow_nan=False)
            return {name: value}
    except (ValueError, RecursionError):
        pass  # shown as bytes, below
    return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def _is_shallow(value: Any) -> bool:
    """Whether all that handles the value one level a call will come to its end."""
    level = [value]
    for _ in range(DEEPEST):
        inner = [each.values() if isinstance(each, dict) else each for each in level
                 if isinstance(each, dict | list)]  # fmt: skip
        level = [item for items in inner for item in items]
        if not level:
            return True
    return False
