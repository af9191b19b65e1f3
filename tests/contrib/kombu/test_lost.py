"""The store is away for a moment: Celery's worker connects anew, and its tasks go on meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kombu
import pytest
from celery import Celery, chain
from celery.worker import state
from kombu.exceptions import OperationalError
from tests.contrib.kombu.rig import PATIENCE, Rig
from tests.contrib.kombu.store import look
from tests.proof.patience import until
from tests.servers import PostgresServer

import outlast.contrib.kombu  # noqa: F401  kombu alone reads no entry points before a URL
from outlast.contrib.kombu import channel as channel_module
from outlast.contrib.kombu.messages import job_for
from outlast.contrib.kombu.places import Places
from outlast.contrib.kombu.results import OutlastResults
from outlast.contrib.kombu.shared import Shared
from outlast.errors import EnqueueUncertain, StoreStopped, StoreUnavailable

if TYPE_CHECKING:
    from pathlib import Path


class Request:
    """What Celery's worker has of a task that runs."""

    def __init__(self, message: Any, *, ended: bool) -> None:
        self.message = message
        conf = SimpleNamespace(worker_cancel_long_running_tasks_on_connection_loss=ended)
        self.task = SimpleNamespace(app=SimpleNamespace(conf=conf))


@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_a_message_whose_task_runs_is_ours_to_its_end(tmp_path: Path, how: str) -> None:
    url = f"outlast+sqlite:///{tmp_path}/app.db"
    with kombu.Connection(url) as connection:
        for number in range(4):
            connection.Producer().publish(str(number), routing_key="q")
    connection = kombu.Connection(url)
    requests = []

    def received(_: Any, message: Any) -> None:
        messages.append(message)
        if message.payload in ("1", "2"):
            requests.append(Request(message, ended=message.payload == "2"))
            state.active_requests.add(requests[-1])

    messages: list[Any] = []
    channel = connection.channel()
    consumer = kombu.Consumer(channel, [kombu.Queue("q")], prefetch_count=4)
    consumer.register_callback(received)
    consumer.consume()
    while len(messages) < 4:
        connection.drain_events(timeout=PATIENCE)
    connection.close()
    again = kombu.Connection(url)
    store = again.channel().shared.store
    assert store is channel.shared.store, "it stays open for the ack"
    assert (store.depth_now("q").running, store.depth_now("q").ready) == (1, 3)
    message = requests[0].message
    if how == "ack":
        message.ack()
    else:
        message.reject(requeue=how == "requeue")
    until(lambda: store.depth_now("q").running == 0, PATIENCE, "it is settled")
    depth = store.depth_now("q")
    assert (depth.ready, depth.dead) == {"ack": (3, 0), "reject": (3, 1), "requeue": (4, 0)}[how]
    again.close()
    assert not [one for one in Shared._open.values() if one.store is store], "it is closed with it"


def test_what_was_acknowledged_while_the_store_is_away_is_stored_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"outlast+sqlite:///{tmp_path}/app.db"
    with kombu.Connection(url) as connection:
        connection.Producer().publish("1", routing_key="q")
    connection = kombu.Connection(url)
    channel = connection.default_channel
    message: Any = channel.basic_get("q")
    store = channel.shared.store

    def away(_: Any) -> Any:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "settle_now", away)
    message.ack()
    connection.close()
    again = kombu.Connection(url)
    assert again.default_channel.shared.store is store
    assert store.depth_now("q").running == 1
    monkeypatch.undo()
    until(lambda: store.depth_now("q").live == 0, PATIENCE, "it is stored")
    again.close()


@pytest.mark.parametrize("unsure", [True, False])
def test_what_follows_a_task_waits_for_a_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsure: bool
) -> None:
    """Celery gives it up after a second: the chain is broken, and its task has failed."""
    app: Any = Celery("sends", broker=f"outlast+sqlite:///{tmp_path}/app.db", set_as_current=False)
    monkeypatch.setattr(channel_module, "PAUSE", 0.0)
    app.conf.task_publish_retry_policy = {"max_retries": 0}
    tries = 0

    def away(method: Any) -> Any:
        def call(*given: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries in (3, 7):
                return method(*given)
            if unsure and tries > 3:
                raise EnqueueUncertain("nobody knows")
            raise StoreUnavailable("away")

        return call

    monkeypatch.setattr(Shared, "add", away(Shared.add))
    monkeypatch.setattr(Places, "declare_queue", away(Places.declare_queue))
    app.amqp._retry_publish(app.send_task, "t", (1,))
    assert tries == 7
    with app.connection_for_read() as connection:
        assert connection.default_channel._size("celery") == 1
    with pytest.raises(OperationalError):
        app.send_task("t", (1,))
    app.pool.force_close_all()
    app.close()


def test_a_store_that_was_given_up_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after one error of the disk after the other: the handle says so for ever."""
    url = f"sqlite:///{tmp_path}/app.db"
    backend = OutlastResults(Celery(set_as_current=False), url=url)
    backend.set("a", "1")
    old = Shared.take(url)
    old.add([job_for("a", "q", {"properties": {}}, b"{}", 0.0, None)])
    (claim,) = old.hands.take(old.hands.claim(["q"], 1))
    old.hands.deliver(claim)

    def stopped(*_: Any) -> Any:
        raise StoreStopped("the disk failed")

    monkeypatch.setattr(old.shelf, "keep", stopped)
    monkeypatch.setattr(old.store, "settle_now", stopped)
    anew = Shared.take(url)
    assert anew is not old
    backend.set("a", "2")
    assert backend._shared is anew
    assert backend.get("a") == "2"
    assert not anew.hands.take(anew.hands.claim(["another"], 1)), "and so somebody looks"
    until(lambda: anew.store.depth_now("q").ready == 1, PATIENCE, "what it held comes back")
    old.leave()
    for _ in range(2):
        anew.leave()
    assert anew not in Shared._open.values()


def test_nothing_is_made_in_place_of_a_file_that_was_deleted(tmp_path: Path) -> None:
    """Whoever connects is told, until it is put back."""
    url = f"sqlite:///{tmp_path}/app.db"
    shared = Shared.take(url)
    away = tmp_path / "away"
    (tmp_path / "app.db").rename(away)
    with pytest.raises(StoreUnavailable):
        shared.shelf.put({"a": b"1"})
    with pytest.raises(StoreStopped, match="Put back what was there"):
        Shared.take(url)
    assert not (tmp_path / "app.db").exists()
    away.rename(tmp_path / "app.db")
    assert Shared.take(url) is shared
    shared.leave()
    shared.leave()


@pytest.mark.needs("servers")
def test_a_server_that_is_restarted_has_no_task_run_twice_and_no_result_lost(
    tmp_path: Path,
) -> None:
    server = PostgresServer()
    server.start()
    rig = Rig(tmp_path, f"outlast+{server.url()}")
    rig.backend = rig.broker
    try:
        rig.worker("-c", "4", "-P", "threads")
        gates = [tmp_path / "another gate", tmp_path / "a third gate"]
        note = rig.app.signature("note", ())
        warm = chain(rig.app.signature("note", (0,)), note).apply_async()
        assert warm.get(timeout=PATIENCE) == 0
        first = rig.app.signature("hold", (4, str(gates[1])))
        sent = [rig.send("hold", 1, rig.gate), rig.send("hold", 2, str(gates[0]))]
        sent.append(chain(first, note).apply_async())
        until(lambda: sorted(rig.starts()) == [1, 2, 4], PATIENCE, "all run")
        server.stop()
        until(lambda: "Connection to broker lost" in rig.text(), PATIENCE, "it is heard")
        for gate in gates:
            gate.touch()
        rig.wait_for(2, 4)
        for what in ("the end of a task waits", "what follows a task waits"):
            until(lambda what=what: what in rig.text(), PATIENCE, what)  # type: ignore[misc]
        server.start()
        sent.append(rig.send("note", 3))
        rig.wait_for(3)
        rig.open_gate()
        assert [each.get(timeout=PATIENCE) for each in sent] == [1, 2, 4, 3]
        until(lambda: look(rig)[0].live == 0, PATIENCE, "all are acknowledged")
        assert sorted(rig.starts()) == [1, 2, 4]
        assert "Traceback" not in rig.text()
    finally:
        rig.close()
        server.remove()
