"""A Celery app as its users have one, which knows nothing of us: its producer, and its workers.

As a program it is the producer: it reads requests as JSON lines, one after the other, and answers.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from celery import Celery, signature
from kombu import Queue

BROKER = os.environ.get("BROKER")
PATIENCE = 60.0

app = Celery("theirs", broker=BROKER, backend=os.environ.get("BACKEND", BROKER))
config = json.loads(os.environ.get("CONFIG", "{}"))
# Queues as somebody has declared them, with arguments of RabbitMQ's.
queues = config.pop("QUEUES", {})
app.conf.update(config)
if queues:
    app.conf.task_queues = [
        Queue(name, routing_key=name, queue_arguments=arguments)
        for name, arguments in queues.items()
    ]


def say(**what: Any) -> None:
    """A line in the log, whole whoever else writes."""
    descriptor = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, json.dumps(what).encode() + b"\n")
    os.close(descriptor)


@app.task(name="theirs.note")
def note(number: int) -> int:
    say(note=number)
    return number


@app.task(name="theirs.double")
def double(number: int) -> int:
    say(double=number)
    return 2 * number


@app.task(name="theirs.total")
def total(numbers: list[int]) -> int:
    say(total=numbers)
    return sum(numbers)


@app.task(name="theirs.give", bind=True)
def give(self: Any, *args: Any, **kwargs: Any) -> list[Any]:
    info = self.request
    say(give=[args, kwargs], id=info.id, root=info.root_id, expires=info.expires)
    return [list(args), kwargs]


def answer(asked: dict[str, Any]) -> Any:
    if "send" in asked:
        sent = app.send_task(asked["send"], asked["args"], asked["kwargs"], **asked["options"])
        return sent.id
    if "apply" in asked:
        return signature(asked["apply"], app=app).apply_async().id
    if "revoke" in asked:
        app.control.revoke(asked["revoke"], terminate=asked.get("terminate", False))
        return None
    if "state" in asked:
        return app.AsyncResult(asked["state"]).state
    found = app.AsyncResult(asked["get"])
    try:
        return {"value": found.get(timeout=PATIENCE)}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error), "state": found.state}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
