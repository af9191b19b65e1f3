"""Power cuts of a private RabbitMQ, on the rig of ``tests.proof.cut``: quorum and classic queues.

Run it as root: ``python -m tests.proof.cut_rabbit --rounds 5 --load rabbit-outlast``. With records
(``--load rabbit-records-postgres``) these lie on the same disk.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from typing import TYPE_CHECKING, Any

import pika
from tests.proof import journal as journals
from tests.proof.actors import answered_in_child, live
from tests.proof.cut import Outcome, Outlast, judged, main
from tests.proof.cut_postgres import OutlastOnPostgres
from tests.proof.cut_redis import Redis
from tests.proof.journal import Journal
from tests.proof.patience import linger, until
from tests.proof.processes import in_child
from tests.proof.stage import QUEUE, TASK, Stage
from tests.rabbit import channel
from tests.servers import RabbitServer

from outlast.doctor import examine
from outlast.job import Job
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.news import WORK
from outlast.stores.rabbitmq.declaring import SETTLE
from outlast.stores.rabbitmq.letters import read
from outlast.stores.urls import with_records

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.proof.cut import Load

__all__ = ["LOADS"]

IMAGE_BYTES = 512 << 20
PATIENCE = 180.0
BEAT = 0.1
"""Seconds between two looks at what else there is to do."""
LOOK = 5.0
"""Seconds after which an idle worker looks into the records; till then it is sent no more bells."""
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


class Beside(OutlastOnBroker):
    """Each job goes to a classic queue as well, confirmed by the same broker on the same disk."""

    children = 1

    def declare(self) -> None:
        with channel(self._server.url()) as raw:
            raw.queue_declare("classic", durable=True, arguments=CLASSIC)

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        async def add_for_ever() -> None:
            store = connect(self._server.url(), namespace="cut")
            await store.open()
            row = 0
            with channel(self._server.url()) as raw:
                raw.confirm_delivery()
                persistent = pika.BasicProperties(delivery_mode=2)
                while True:
                    job = Job(id=f"{row}", task="t", payload=b"x" * 200)
                    await store.add([job])
                    raw.basic_publish("", "classic", job.id.encode(), persistent, mandatory=True)
                    journal.write("ok", job.id)
                    row += 1

        asyncio.run(add_for_ever())

    def judge(self, folder: Path, witness: Path) -> Outcome:
        promised = {event.id for event in journals.read(witness) if event.kind == "ok"}
        self._server.start()
        try:
            kept = {body.decode() for body in self.bodies("classic")}
            lost = len(promised - self.found())
            return Outcome(len(promised), lost, beside=len(promised - kept))
        finally:
            self._server.kill()


class Recorded(OnBroker):
    """Bells on the broker and jobs in records, on one disk: the power goes for both at once.

    Afterwards whoever works starts what he is rung for, and looks by himself as seldom as a worker.
    """

    def __init__(self, records: Outlast | OutlastOnPostgres | Redis) -> None:
        super().__init__()
        self._records = records

    def lay(self, folder: Path) -> None:
        self._records.lay(folder)

    def predict(self, folder: Path) -> str:
        """What doctor says of the two together, in words of the enum."""
        answer = folder / "said"

        async def look() -> None:
            store = self._store(folder)
            await store.open()
            await store.close()
            answer.write_text(str((await examine(self._url(folder))).accepted))

        try:
            self.prepare(folder)
            in_child(lambda: asyncio.run(look()), PATIENCE)
            return answer.read_text()
        finally:
            self.end()

    def prepare(self, folder: Path) -> None:
        """Both run, and the queue of the bells is there, as in a line that is in use."""
        self._records.prepare(folder)
        super().prepare(folder)

        async def ring() -> None:
            store = self._store(folder)
            await self._opened(store)
            store._bells.ring({(QUEUE, TASK): 1})
            while not (heard := store._bells.take([QUEUE], [TASK], 1)):
                await _beat()  # in which the list is filled
                if heard:
                    return

        in_child(lambda: asyncio.run(ring()), PATIENCE)
        linger(SETTLE)  # younger than half a second, a queue of 3.10 has no leader after a cut

    def end(self) -> None:
        super().end()
        self._records.end()

    def _url(self, folder: Path) -> str:
        return with_records(self._server.url(), self._records.url(folder))

    def _store(self, folder: Path) -> Any:
        return connect(self._url(folder))

    async def _opened(self, store: Any) -> None:
        """Opened, and sent whatever is rung."""
        await store.open()
        store._bells.take([QUEUE], [TASK], 1)
        async with asyncio.timeout(PATIENCE):
            while not (store._bells.listens and store._bells.engine.outbox.takes):
                await _beat()

    def run(self, folder: Path, journal: Journal, number: int) -> None:
        async def for_ever() -> None:
            store = self._store(folder)
            await self._opened(store)
            await live(lambda: store, journal, os.getpid(), lease=2.0)

        asyncio.run(for_ever())

    def judge(self, folder: Path, witness: Path) -> Outcome:
        self._records.prepare(folder)
        self._server.start()

        async def rung() -> dict[str, Job]:
            store = self._store(folder)
            await self._opened(store)
            stage = Stage(store, Journal(witness), worker="last")
            async with asyncio.timeout(PATIENCE):
                looked = 0.0
                while (await store.depth(QUEUE)).live:
                    await store.recover(1000)
                    await store.wait([QUEUE], BEAT)
                    now = asyncio.get_running_loop().time()
                    if store._news.is_new(WORK, [QUEUE]) or now > looked + LOOK:
                        looked = now
                        await stage.end(await stage.claim(100, 60.0), "done")
            found = await stage.dump()
            await store.close()
            return found

        try:
            return judged(witness, answered_in_child(rung, witness / "final.json", 2 * PATIENCE))
        finally:
            self.end()


async def _beat() -> None:
    """A moment between two looks for what another thread does."""
    await asyncio.wait((asyncio.get_running_loop().create_future(),), timeout=BEAT)


LOADS: Mapping[str, Callable[[], Load]] = {
    "rabbit-outlast": OutlastOnBroker,
    "rabbit-beside": Beside,
    "rabbit-records-sqlite": lambda: Recorded(Outlast(Durability.POWER)),
    "rabbit-records-postgres": lambda: Recorded(OutlastOnPostgres()),
    "rabbit-records-redis": lambda: Recorded(Redis("", appendfsync="always")),
    "rabbit-quorum": lambda: Plain(QUORUM),
    "rabbit-classic": lambda: Plain(CLASSIC),
}

if __name__ == "__main__":
    main(LOADS)
