"""Power cuts of a private RabbitMQ, on the rig of ``tests.proof.cut``: quorum and classic queues.

Run it as root: ``python -m tests.proof.cut_rabbit --rounds 5 --load rabbit-outlast``.
"""

from __future__ import annotations

import asyncio
import atexit
from typing import TYPE_CHECKING, Any

import pika
from tests.proof import journal as journals
from tests.proof.cut import Outcome, main
from tests.proof.patience import linger, until
from tests.rabbit import channel
from tests.servers import RabbitServer

from outlast.job import Job
from outlast.stores import connect
from outlast.stores.rabbitmq.declaring import SETTLE
from outlast.stores.rabbitmq.letters import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.proof.cut import Load
    from tests.proof.journal import Journal

__all__ = ["LOADS"]

IMAGE_BYTES = 512 << 20
PATIENCE = 180.0
MISSING = 404
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
CLASSIC: dict[str, Any] = {"x-queue-type": "classic", "x-queue-version": 2}


class OnBroker:
    """A broker whose messages lie on the rig's disk; its settings and log do not."""

    children = 2
    size = IMAGE_BYTES

    def __init__(self) -> None:
        self._server = RabbitServer()
        atexit.register(self._server.remove)

    def lay(self, folder: Path) -> None:
        """A broker makes all it needs, and is up before the load begins."""

    def predict(self, folder: Path) -> str:
        """Nothing: doctor can't see the disk of a broker."""
        return ""

    def prepare(self, folder: Path) -> None:
        assert self._server.env is not None
        self._server.env["RABBITMQ_MNESIA_BASE"] = str(folder / "data")
        self._server.start()
        self.declare()

    def declare(self) -> None:
        """The queues."""

    def end(self) -> None:
        self._server.kill()

    def judge(self, folder: Path, witness: Path) -> Outcome:
        promised = {event.id for event in journals.read(witness) if event.kind == "ok"}
        self._server.start()
        try:
            return Outcome(len(promised), len(promised - self.found()))
        finally:
            self._server.kill()

    def bodies(self, queue: str) -> list[bytes]:
        """All that is in a queue; which may take a while until it has a leader again."""
        found: list[bytes] = []

        def is_read() -> bool:
            try:
                with channel(self._server.url()) as raw:
                    while True:
                        method, _, body = raw.basic_get(queue, auto_ack=True)
                        if method is None:
                            return True
                        found.append(body)
            except pika.exceptions.ChannelClosedByBroker as error:
                if error.reply_code != MISSING:
                    raise
                return True
            except pika.exceptions.ConnectionClosedByBroker:
                return False

        until(is_read, PATIENCE, f"{queue} can be read")
        return found

    def found(self) -> set[str]:
        """What the broker still has."""
        raise AssertionError("a subclass says it")


class Plain(OnBroker):
    """The client alone: persistent messages in a durable queue, each confirmed."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self._arguments = arguments

    def declare(self) -> None:
        with channel(self._server.url()) as raw:
            for number in range(self.children):
                raw.queue_declare(f"plain{number}", durable=True, arguments=self._arguments)
        linger(SETTLE)  # as our store does: 3.10 loses a quorum queue that is younger

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        with channel(self._server.url()) as raw:
            raw.confirm_delivery()
            persistent = pika.BasicProperties(delivery_mode=2)
            row = 0
            while True:
                body = f"{number} {row}"
                raw.basic_publish("", f"plain{number}", body.encode(), persistent, mandatory=True)
                journal.write("ok", body)
                row += 1

    def found(self) -> set[str]:
        bodies: list[bytes] = []
        for number in range(self.children):
            bodies += self.bodies(f"plain{number}")
        return {body.decode() for body in bodies}


class OutlastOnBroker(OnBroker):
    """Two processes add to one store, ten at a time, until the power goes."""

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        async def add_for_ever() -> None:
            store = connect(self._server.url(), namespace="cut")
            await store.open()

            async def add(lane: int) -> None:
                row = 0
                while True:
                    job = Job(id=f"{number}.{lane}.{row}", task="t", payload=b"x" * 200)
                    await store.add([job])
                    journal.write("ok", job.id)
                    row += 1

            await asyncio.gather(*(add(lane) for lane in range(10)))

        asyncio.run(add_for_ever())

    def found(self) -> set[str]:
        return {read(body)[0].id for body in self.bodies("outlast/cut/default/t")}


LOADS: Mapping[str, Callable[[], Load]] = {
    "rabbit-outlast": OutlastOnBroker,
    "rabbit-quorum": lambda: Plain(QUORUM),
    "rabbit-classic": lambda: Plain(CLASSIC),
}

if __name__ == "__main__":
    main(LOADS)
