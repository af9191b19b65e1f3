"""What bench/beside_bench.py runs: one task, as an app of Celery's and as one of outlast's."""

from __future__ import annotations

import os

from celery import Celery

from outlast import Outlast

BROKER = os.environ["BROKER"]

celery = Celery("bench", broker=BROKER, backend=BROKER)
celery.conf.update(
    task_ignore_result=bool(os.environ.get("IGNORE")),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
app = Outlast(f"sqlite:///{os.environ['FOLDER']}/jobs.db")


def append() -> None:
    """One byte for each run, in whatever process."""
    descriptor = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b".")
    os.close(descriptor)


@celery.task(name="mark")
def theirs(number: int) -> int:
    append()
    return number


@app.task
async def ours(number: int) -> int:
    append()
    return number


app.celery_tasks({"mark": ours}, broker=BROKER, backend=BROKER)
