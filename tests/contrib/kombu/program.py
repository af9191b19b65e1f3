"""A Celery program as its users have one: the workers of these tests run it."""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from tests.proof.patience import until

HANG = 120.0

app = Celery("program", broker=os.environ.get("BROKER"), backend=os.environ.get("BACKEND"))
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
    worker_hijack_root_logger=False,
    broker_transport_options=json.loads(os.environ.get("OPTIONS", "{}")),
    broker_connection_retry_on_startup=True,
)
app.conf.update(json.loads(os.environ.get("CONFIG", "{}")))


def say(**what: Any) -> None:
    """A line in the log, whole whoever else writes."""
    line = json.dumps({**what, "pid": os.getpid()}) + "\n"
    descriptor = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@app.task(name="note", bind=True)
def note(self: Any, number: int) -> int:
    info = self.request.delivery_info or {}
    say(end=number, redelivered=bool(info.get("redelivered")), id=self.request.id)
    return number


@app.task(name="hold", bind=True)
def hold(self: Any, number: int, gate: str) -> int:
    """Runs until the gate is open."""
    say(start=number)
    until(lambda: os.path.exists(gate), HANG, f"the gate of {number}")
    say(end=number, redelivered=bool((self.request.delivery_info or {}).get("redelivered")))
    return number


@app.task(name="die_once")
def die_once(number: int, marker: str) -> None:
    """Takes its process along, the first time."""
    say(start=number)
    if not os.path.exists(marker):
        with open(marker, "x"):
            os.kill(os.getpid(), 9)
    say(end=number)


@app.task(name="die")
def die(number: int) -> None:
    """Takes its process along, each time."""
    say(start=number)
    os.kill(os.getpid(), 9)


@app.task(name="again", bind=True, max_retries=3)
def again(self: Any, number: int) -> None:
    say(try_=self.request.retries, number=number)
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    say(end=number)


@app.task(name="refuse", acks_late=True)
def refuse(number: int) -> None:
    say(start=number)
    raise Reject("not today", requeue=False)


@app.task(name="total")
def total(numbers: list[int]) -> int:
    say(end="total")
    return sum(numbers)


if os.environ.get("NEWER"):

    @app.task(name="to_come")
    def to_come(number: int) -> None:
        say(end=f"new {number}")
