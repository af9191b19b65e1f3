"""What Celery's worker in this process is at work on: that goes on when its connection is lost."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["follows", "running"]

TRIES = 100
"""Requests come and go in other threads while they are looked at."""


def running() -> set[str]:
    """Delivery tags of the messages whose tasks run now, and are acknowledged when these end."""
    state: Any = sys.modules.get("celery.worker.state")
    if state is None:
        return set()
    for _ in range(TRIES):
        try:
            return {each.message.delivery_tag for each in state.active_requests if _goes_on(each)}
        except RuntimeError:
            continue
    return set()


def follows() -> bool:
    """Whether a worker sends here what follows a task that has run.

    Celery gives that up after a second, and then takes the task for failed (5.7 tells so).
    """
    amqp: Any = sys.modules.get("celery.app.amqp")
    told = getattr(amqp, "_callback_publish_retry", None)
    return told is not None and bool(told.get())


def _goes_on(request: Any) -> bool:
    """Celery can be told to end it when the connection is lost: then another is to have it."""
    conf = request.task.app.conf
    return not conf.worker_cancel_long_running_tasks_on_connection_loss
