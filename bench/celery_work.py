"""The Celery program that bench/celery_bench.py runs on each broker: a task of one byte."""

from __future__ import annotations

import os

from celery import Celery

app = Celery("bench", broker=os.environ["BROKER"])
app.conf.update(
    task_acks_late=True,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="mark")
def mark() -> None:
    """One byte for each run, in whatever process."""
    descriptor = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b".")
    os.close(descriptor)
