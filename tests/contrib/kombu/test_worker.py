"""A real Celery worker on our broker, with its results on the same file."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group, uuid
from celery.exceptions import TaskRevokedError
from tests.contrib.kombu.rig import PATIENCE, Rig
from tests.contrib.kombu.store import look
from tests.proof.patience import until

from outlast.job import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

YEAR = 365 * 86400.0


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """One worker of two processes, which sends events."""
    rig = Rig(tmp_path_factory.mktemp("shop"))
    rig.backend = rig.broker
    rig.worker("-c", "2", "-P", "prefork", "-E")
    yield rig
    rig.close()


def signature(rig: Rig, task: str, *args: Any, **options: Any) -> Any:
    return rig.app.signature(task, args=args, **options)


def test_results_come_from_the_same_file(shop: Rig) -> None:
    assert shop.send("note", 1).get(timeout=PATIENCE) == 1
    with pytest.raises(Exception, match="unsupported operand"):
        shop.send("total", [1, "two"]).get(timeout=PATIENCE)


def test_a_chord_is_counted_by_the_store(shop: Rig) -> None:
    header = group(signature(shop, "note", number) for number in range(10, 20))
    body = signature(shop, "total")
    assert chord(header)(body).get(timeout=PATIENCE) == sum(range(10, 20))
    steps = chain(signature(shop, "note", 5), signature(shop, "note"))
    assert steps.apply_async().get(timeout=PATIENCE) == 5
    assert "chord_unlock" not in shop.text()


def test_retries_wait_in_the_store(shop: Rig) -> None:
    shop.send("again", 30)
    shop.wait_for(30)
    tries = [line["try_"] for line in shop.said() if line.get("number") == 30]
    assert tries == [0, 1, 2]


def test_what_is_due_later_stays_in_the_store(shop: Rig) -> None:
    """No worker holds it: not one a year ahead, and not one that is due soon."""
    sent = time.time()
    far = shop.send("note", 40, countdown=YEAR, queue="celery")
    soon = shop.send("note", 41, countdown=1.5)
    scheduled = shop.app.control.inspect(timeout=PATIENCE, limit=1).scheduled()
    assert list(scheduled.values()) == [[]]
    assert soon.get(timeout=PATIENCE) == 41
    assert time.time() - sent >= 1.5
    depth, (job,) = look(shop, "celery", Status.QUEUED)
    assert depth.delayed == 1
    assert job.run_at is not None
    assert abs(job.run_at - sent - YEAR) < PATIENCE
    assert shop.app.control.purge() == 1
    assert look(shop)[0].delayed == 0
    assert far.state == "PENDING"


def test_remote_control_and_revoke(shop: Rig) -> None:
    inspect = shop.app.control.inspect(timeout=PATIENCE, limit=1)
    assert inspect.ping() == {"w@here": {"ok": "pong"}}
    assert "note" in inspect.registered()["w@here"]
    stats = inspect.stats()["w@here"]
    assert stats["broker"]["transport"] == "outlast"
    # Before it is sent: whether a word comes before a moment is up to how busy the machine is.
    revoked = uuid()
    (answer,) = shop.app.control.revoke(revoked, reply=True, timeout=PATIENCE, limit=1)
    assert "ok" in answer["w@here"]
    with pytest.raises(TaskRevokedError):
        shop.send("note", 50, task_id=revoked, countdown=0.5).get(timeout=PATIENCE)
    assert 50 not in shop.ends()


def test_an_expired_task_is_revoked_by_the_worker(shop: Rig) -> None:
    """Not dropped by the store: whoever waits for its result is told."""
    late = shop.send("note", 55, countdown=0.5, expires=0.1)
    with pytest.raises(TaskRevokedError):
        late.get(timeout=PATIENCE)


def test_events_reach_whoever_listens(shop: Rig) -> None:
    seen: list[dict[str, Any]] = []
    wanted: list[str] = []
    listening = threading.Event()

    def succeeded() -> set[Any]:
        return {event.get("uuid") for event in seen if event["type"] == "task-succeeded"}

    with shop.app.connection_for_read() as connection:
        receiver = shop.app.events.Receiver(connection, handlers={"*": seen.append})

        def listen() -> None:
            for _ in receiver.consume(limit=None, timeout=PATIENCE, wakeup=False):
                listening.set()
                if wanted and wanted[0] in succeeded():
                    return

        thread = threading.Thread(target=listen)
        thread.start()
        assert listening.wait(PATIENCE)  # a heartbeat has come
        wanted.append(shop.send("note", 60).id)
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert wanted[0] in succeeded()


def test_children_forked_beside_an_open_file_store_results(rig: Rig) -> None:
    """One for each task, while the main process has the broker's file open."""
    rig.backend = rig.broker
    rig.worker("-c", "2", "-P", "prefork", "--max-tasks-per-child", "1")
    sent = [rig.send("note", number) for number in range(8)]
    assert [each.get(timeout=PATIENCE) for each in sent] == list(range(8))
    assert len({line["pid"] for line in rig.said()}) == 8


def test_what_is_rejected_is_kept(shop: Rig) -> None:
    """C34: and what no worker here knows. Elsewhere both are deleted."""
    shop.send("refuse", 70)
    shop.send("to_come", 71)
    until(lambda: len(look(shop, "celery", Status.DEAD)[1]) == 2, PATIENCE, "two dead messages")
    _, jobs = look(shop, "celery", Status.DEAD)
    assert {b"to_come" in job.payload for job in jobs} == {True, False}
    assert all("rejected" in job.failure.message for job in jobs if job.failure)
    shop.send("note", 72)
    shop.wait_for(72)


def test_nothing_is_left_behind(shop: Rig) -> None:
    """What was acknowledged is gone from the file, and no reply queue outlives its question."""
    shop.send("note", 80)
    shop.wait_for(80)
    until(lambda: look(shop)[0].live == 0, PATIENCE, "the queue is empty")
    assert look(shop)[0].done == 0
