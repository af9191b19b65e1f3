"""The cases that were seen on RabbitMQ, and those of all stores that a broker can meet."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.cases.program import NEW_KIND
from tests.cases.rig import SECRET, Rig, assert_hidden, outlast, scaled
from tests.cases.test_c09_stop_signal import stop_signals
from tests.cases.test_c36_values import VALUES
from tests.proof.patience import linger, until
from tests.rabbit import channel, dead, due_at
from tests.servers import RabbitServer, shared

from outlast import Outlast
from outlast.errors import StoreError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator, Sequence

    from outlast.job import Job

pytestmark = pytest.mark.needs("rabbitmq")

_names = itertools.count(1)


@pytest.fixture
def server() -> RabbitServer:
    return shared(RabbitServer)


class BrokerRig(Rig):
    """A broker keeps no outcomes: the tasks' own log tells."""

    def until_ended(self, ids: Sequence[str], seconds: float = 90.0) -> None:
        until(lambda: min(self.ends(ids)) > 0, seconds, "all have ended")

    def until_dead(self, many: int, seconds: float = 60.0) -> list[Job]:
        """Wait for so many dead, and take them away."""
        buried: list[Job] = []

        def are_buried() -> bool:
            buried.extend(dead(self.url, "default"))
            return len(buried) >= many

        until(are_buried, seconds, f"{many} are dead", beat=0.1)
        return buried


@pytest.fixture
def rig(tmp_path: Path, server: RabbitServer) -> Iterator[BrokerRig]:
    made = BrokerRig(tmp_path, server.url(vhost=server.make_vhost(f"case{next(_names)}")))
    yield made
    made.close()


def delayed(server: RabbitServer, rig: BrokerRig) -> int:
    listed = server.ctl(
        "list_queues", "-p", rig.url.rpartition("/")[2], "name", "messages", "--silent"
    )
    counts = dict(line.split("\t") for line in listed.splitlines() if "\t" in line)
    return sum(int(many) for name, many in counts.items() if name.startswith("outlast/delay/"))


def test_c01(rig: BrokerRig) -> None:
    """C01: a worker dies, and what it held is lost, or waits for half an hour."""
    ids = rig.enqueue(*[("nap", 0.3) for _ in range(6)])
    first = rig.start("-c", "3")
    until(lambda: len(rig.said("start")) >= 3, 60.0, "three run")
    rig.kill(first)
    rig.start("-c", "3")
    rig.until_ended(ids)
    assert rig.ends(ids) == [1] * 6


def test_c09(rig: BrokerRig) -> None:
    """C09: a message popped at the very instant of the stop signal never comes back."""
    stop_signals(rig, scaled(300, 3))


def test_c11(rig: BrokerRig) -> None:
    """C11: every deploy that interrupts a task uses up one attempt, until it is declared dead."""
    (id,) = rig.enqueue(("until", str(rig.folder / "go")))
    for round in range(1, scaled(6, 4)):
        worker = rig.start("-c", "1", "--grace", scaled("2", "0.2"))
        rig.until_started(id, round)
        linger(scaled(5.0, 0.0))
        assert rig.stop(worker) == 0
    (rig.folder / "go").touch()
    (control,) = rig.enqueue(("raises",))
    rig.start("-c", "1")
    rig.until_ended([id])
    [job] = rig.until_dead(1)
    assert (job.id, job.failures, rig.starts([control])) == (control, 2, [2])
    assert rig.ends([id]) == [1]
    assert dead(rig.url, "default") == []


def memory(rig: Rig, worker: subprocess.Popen[bytes]) -> int:
    """Bytes that a worker's processes have in memory."""
    pages = (Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in rig.members(worker))
    return sum(map(int, pages)) * os.sysconf("SC_PAGE_SIZE")


def test_c15(rig: BrokerRig, server: RabbitServer) -> None:
    """C15: tasks that are due much later fill the worker, or hide those that are due now."""
    many = scaled(100_000, 3_000)
    first = rig.enqueue(("instant", 0))
    worker = rig.start("-c", "2")
    rig.until_ended(first)
    before = memory(rig, worker)
    assert rig.stop(worker) == 0
    for _ in range(many // 1000):
        rig.enqueue(*[("instant", n) for n in range(1000)], delay=30 * 86400)
    worker = rig.start("-c", "2")
    rig.until_up()
    linger(scaled(60.0, 0.0))
    ids = rig.enqueue(*[("instant", n) for n in range(10)])
    rig.until_ended(ids, scaled(2.0, 60.0))
    assert rig.starts(ids) == [1] * 10
    assert memory(rig, worker) < before + 50_000_000
    # The broker brings its own counts up to date every few seconds.
    until(lambda: delayed(server, rig) == many, 60.0, "all are still held back", beat=1.0)
    assert len(rig.said("start")) == 11


def test_c32(rig: BrokerRig, server: RabbitServer) -> None:
    """C32: a task that kills its worker is redelivered for ever, or acknowledged and lost."""
    before = rig.enqueue(*[("instant", n) for n in range(25)])
    (poison,) = rig.enqueue(("kills",))
    after = rig.enqueue(*[("instant", n) for n in range(25)])
    rig.start("-c", "1")
    rig.until_ended([*before, *after])
    until(lambda: rig.starts([poison]) == [3], 60.0, "it has killed three workers")
    [job] = rig.until_dead(1)
    assert job.failure is not None
    assert (job.id, job.crashes, job.failure.kind) == (poison, 3, "crash")
    linger(scaled(300.0, 0.0))
    assert rig.starts([poison]) == [3]
    assert all(1 <= number <= 2 for number in rig.ends([*before, *after]))


def test_c34(rig: BrokerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """C34: a worker that lacks the code for a task deletes it."""
    monkeypatch.setenv(NEW_KIND, "1")
    new = rig.enqueue(*[("new-kind", n) for n in range(5)])
    monkeypatch.delenv(NEW_KIND)
    known = rig.enqueue(*[("instant", n) for n in range(10)])
    rig.start("-c", "2")
    rig.until_ended(known)
    linger(scaled(60.0, 1.0))
    with channel(rig.url) as raw:
        answer = raw.queue_declare("outlast/default/default/new-kind", passive=True)
        assert answer.method.message_count == 5, "ready, with nobody who knows it"
    rig.start("-c", "2", **{NEW_KIND: "1"})
    rig.until_ended(new)
    assert (rig.starts(new), rig.ends(new)) == ([1] * 5, [1] * 5)


async def test_c36(server: RabbitServer) -> None:
    """C36: tuples arrive as lists, integer keys as strings, dates as datetimes."""
    app = Outlast(server.url(), namespace=f"case{next(_names)}")
    arrived: dict[int, Any] = {}
    tasks = []
    for number, (_, annotation) in enumerate(VALUES):

        async def keep(it: Any, number: int = number) -> None:
            arrived[number] = it

        keep.__annotations__ = {"it": annotation, "number": int, "return": None}
        tasks.append(app.task(name=f"keep{number}")(keep))
    async with app, app.worker():
        for task, (value, _) in zip(tasks, VALUES, strict=True):
            await task.enqueue(value)
        while len(arrived) < len(VALUES):
            await app.store.wait(["nothing"], 0.01)
    for number, (value, _) in enumerate(VALUES):
        found = arrived[number]
        assert (type(found), found, repr(found)) == (type(value), value, repr(value))


def test_c51(rig: BrokerRig, server: RabbitServer) -> None:
    """C51: the password is shown in a message, a log, or a listing; and an argument unescaped.

    There are no pages: what is shown is what the commands print, and what workers log.
    """
    vhost = rig.url.rpartition("/")[2]
    user, password = '<<"shop">>', f'<<"{SECRET}">>'
    server.evaluate(
        f'rabbit_auth_backend_internal:add_user({user}, {password}, <<"test">>),'
        f' rabbit_auth_backend_internal:set_permissions({user}, <<"{vhost}">>, <<".*">>, <<".*">>,'
        ' <<".*">>, <<"test">>).'
    )
    rig.url = right = server.url(user=f"shop:{SECRET}", vhost=vhost)
    (shown,) = rig.enqueue(("until", "<script>\x1b[31m"))
    worker = rig.start("-c", "1", "--log-level", "debug", PYTHONASYNCIODEBUG="1")
    rig.until_started(shown)
    found = [outlast(right, "doctor")]
    assert found[0].returncode == 0, found[0].stdout
    server.evaluate(
        f'rabbit_auth_backend_internal:change_password({user}, <<"another">>, <<"test">>),'
        ' [rabbit_networking:close_connection(P, "test") || P <- rabbit_networking:connections()].'
    )
    found += [outlast(right, word) for word in ("status", "doctor")]
    found.append(outlast(right.replace(f":{server.port}", ":1"), "doctor"))
    for done in found[1:]:
        assert done.returncode != 0
        assert "127.0.0.1" in done.stderr + done.stdout
    until(lambda: "check user, password" in rig.workers_said, 60.0, "it was told")
    rig.kill(worker)
    said = rig.workers_said + "".join(done.stdout + done.stderr for done in found)
    assert_hidden(said)


def test_c22(rig: BrokerRig, server: RabbitServer) -> None:
    """C22: after a restart of the broker the worker takes no more tasks, or exits.

    What is due much later (C13) stands where it stood, with what was left of its time there.
    """
    (first,) = rig.enqueue(("instant", 1))
    (much_later,) = rig.enqueue(("instant", 90), delay=90 * 86400)
    vhost = rig.url.rpartition("/")[2]
    due = due_at(server, vhost, 25)
    assert abs(due - time.time() - 0.125 * 2**25) < 600.0
    worker = rig.start("-c", "2")
    rig.until_ended([first])
    pids = rig.members(worker)
    for _ in range(scaled(5, 1)):
        server.kill()
        with pytest.raises(StoreError):
            rig.enqueue(("instant", 2))
        server.start()
        ids = rig.enqueue(*[("instant", n) for n in range(10)])
        rig.until_ended(ids)
        assert rig.ends(ids) == [1] * 10
        assert due_at(server, vhost, 25) == due
    assert rig.members(worker) == pids
    assert rig.starts([much_later]) == [0]


def _has(confirmed: Sequence[str], many: int) -> bool:
    return len(confirmed) >= many


def test_workers_and_the_broker_are_killed(rig: BrokerRig, server: RabbitServer) -> None:
    """Whatever dies in whichever order: what was confirmed ends."""
    confirmed: list[str] = []
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            try:
                confirmed.extend(rig.enqueue(*[("instant", n) for n in range(5)]))
            except StoreError:
                continue

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        for n in range(scaled(20, 2)):
            worker = rig.start("-c", "4")
            have = len(confirmed)
            until(partial(_has, confirmed, have + 20), 60.0, "some are confirmed")
            if n % 2:
                server.kill()
                server.start()
            rig.kill(worker)
    finally:
        over.set()
        producer.join()
    rig.start("-c", "4")
    rig.until_ended(confirmed, 120.0)
    repeats = Counter(rig.ends(confirmed))
    assert min(repeats) >= 1
    assert len(confirmed) == len(set(confirmed))
