"""An app of ours beside a Celery app, whose worker dies once at a step that is named."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from tests.contrib.beside.theirs import say
from tests.proof.patience import until

from outlast import Outlast
from outlast.contrib.celery.beside.intake import Intake
from outlast.contrib.celery.beside.redis import RedisBackend, RedisBroker

BROKER = os.environ["BROKER"]
FOLDER = Path(os.environ["FOLDER"])

app = Outlast(f"sqlite:///{FOLDER}/jobs.db")


def die(step: str) -> None:
    """Once in all, if this is the step."""
    if os.environ.get("DIE") != step:
        return
    try:
        with open(FOLDER / "died", "x"):
            os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        pass


@app.task
async def add(x: int, y: int) -> int:
    die("before the run")
    if os.environ.get("DIE") == "after _store":
        # Whoever waited for work may be told before who brought it.
        await asyncio.to_thread(until, (FOLDER / "died").exists, 60.0, "it was killed")
    say(add=[x, y])
    die("in the run")
    return x + y


app.celery_tasks(
    {"ours.add": add},
    broker=BROKER,
    backend=os.environ.get("BACKEND", BROKER),
    queues=["ours"],
    take_over=0.5,
)


def trap(owner: Any, name: str) -> None:
    """Let a method die before or after it does its work."""
    method = getattr(owner, name)

    async def trapped(self: Any, *args: Any) -> Any:
        # Nothing to do is no step.
        busy = name != "send" or args[0]
        if busy:
            die(f"before {name}")
        found = await method(self, *args)
        if busy:
            die(f"after {name}")
        return found

    setattr(owner, name, trapped)


trap(Intake, "_store")
if BROKER.startswith("amqp"):
    from outlast.contrib.celery.beside.rabbit import RabbitBroker

    trap(RabbitBroker, "settle")
    trap(RabbitBroker, "send")
trap(RedisBroker, "settle")
trap(RedisBroker, "send")
trap(RedisBackend, "store")
trap(RedisBackend, "part")
trap(RedisBackend, "finish")
