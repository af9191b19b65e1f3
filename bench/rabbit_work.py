"""What bench/rabbit_bench.py has workers run: one task, in whichever library ``SIDE`` names.

Each as its own documents have it: Celery acks early and confirms nothing; Dramatiq and taskiq ack
late. Their queues are classic ones.
"""

from __future__ import annotations

import os
from typing import Any

SIDE, URL = os.environ["SIDE"], os.environ["BROKER"]


def mark() -> None:
    """One byte for each run, in whatever process."""
    descriptor = os.open(os.environ["MARKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, b".")
    os.close(descriptor)


def run(text: str) -> None:
    mark()


async def run_async(text: str) -> None:
    mark()


app: Any
task: Any
match SIDE:
    case "outlast":
        from outlast import Outlast

        app = Outlast(URL)
        task = app.task(name="nothing", timeout=600.0)(run_async)
    case "celery":
        from celery import Celery

        app = Celery("bench", broker=URL)
        app.conf.update(
            task_ignore_result=True,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
            task_default_queue="celery",
        )
        task = app.task(name="nothing")(run)
    case "dramatiq":
        import dramatiq
        from dramatiq.brokers.rabbitmq import RabbitmqBroker

        app = RabbitmqBroker(url=URL)
        dramatiq.set_broker(app)
        task = dramatiq.actor(queue_name="dramatiq")(run)
    case "taskiq":
        from taskiq_aio_pika import AioPikaBroker

        app = AioPikaBroker(URL)
        task = app.task(task_name="nothing")(run_async)


async def fill(many: int, text: str) -> None:
    """Have so many calls wait for a worker."""
    if SIDE == "outlast":
        async with app:
            for begin in range(0, many, 1000):
                await app.enqueue_many([task.call(text) for _ in range(min(1000, many - begin))])
    elif SIDE == "taskiq":
        await app.startup()
        for _ in range(many):
            await task.kiq(text)
        await app.shutdown()
    else:
        send = task.delay if SIDE == "celery" else task.send
        for _ in range(many):
            send(text)
