"""The parts under the transport: names, messages as jobs, the shelf, exchanges and queues."""

from __future__ import annotations

import gc
import itertools
import threading
from typing import TYPE_CHECKING, Any, cast

import kombu
import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import OperationalError
from kombu.utils.json import loads
from tests.proof.patience import until
from tests.servers import PostgresServer, RedisServer, shared

import outlast.contrib.kombu  # noqa: F401  kombu alone reads no entry points before a URL
from outlast import collected
from outlast.contrib.kombu.messages import (
    delivered,
    due,
    encode,
    job_for,
    note_ids,
    noted_ids,
)
from outlast.contrib.kombu.names import LONGEST, our_name, their_name
from outlast.contrib.kombu.places import Places
from outlast.contrib.kombu.results import OutlastResults
from outlast.contrib.kombu.shared import Shared
from outlast.contrib.kombu.shelves import shelf_of
from outlast.errors import EnqueueUncertain, OutlastError, Unsupported
from outlast.job import Claim, Job
from outlast.limits import check_name
from outlast.stores import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outlast.contrib.kombu.shelves import Shelf

_namespaces = itertools.count(1)


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.needs("servers")),
        pytest.param("redis", marks=pytest.mark.needs("redis")),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/app.db"
    elif request.param == "redis":
        url = shared(RedisServer).url(query="durability=process")
    else:
        url = shared(PostgresServer).url()
    store: Any = connect(url, namespace=f"shelf{next(_namespaces)}")
    store.open_now()
    yield store
    store.close_now()


@pytest.fixture
def shelf(store: Any) -> Shelf:
    return shelf_of(store)


# -- names


@given(st.text(max_size=300))
def test_any_name_of_theirs_is_one_of_ours(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    ours = our_name(name)
    check_name(ours)
    if len(ours) < LONGEST and ":." not in ours:
        assert their_name(ours) == name


def test_plain_names_stay_and_long_ones_stay_apart() -> None:
    assert our_name("celery") == "celery"
    assert our_name("w@host.celery.pidbox") == "w:40host.celery.pidbox"
    assert our_name("a:b") != our_name("a:3ab")
    long = "ü" * 100
    assert our_name(long + "1") != our_name(long + "2")


# -- messages


@pytest.mark.parametrize(
    ("eta", "expected"),
    [
        ("1970-01-01T01:00:00+00:00", 3600.0),
        ("1970-01-01T01:00:00", 3600.0),
        ("1970-01-01T02:00:00+01:00", 3600.0),
        ("1970-01-01T01:00:00Z", 3600.0),
        ("1970-01-01T00:00:05+00:00", None),
        ("tomorrow", None),
        (None, None),
        ("", None),
        (17, None),
    ],
)
def test_when_a_message_is_due(eta: Any, expected: float | None) -> None:
    assert due({"eta": eta}, 10.0) == expected


def job(headers: dict[str, Any] | None = None, ttl: float | None = None, **properties: Any) -> Any:
    message = {"headers": headers, "properties": properties, "body": "[]"}
    return job_for("id", "celery", message, encode(message), 10.0, ttl)


def test_what_the_store_has_to_know_of_a_message() -> None:
    assert job(priority=7).priority == 7
    assert job(priority=1000).priority == 100
    assert [job(priority=odd).priority for odd in (-3, None, "x", "5")] == [0, 0, 0, 5]
    assert job(expiration="1500").ttl == 1.5
    assert job(expiration="1500", ttl=1.0).ttl == 1.0
    assert job({"task": "t"}, expiration="1500").ttl is None, "its worker writes that it expired"
    assert job({"task": "t"}, ttl=3.0).ttl == 3.0
    assert job(expiration="soon").ttl is None
    assert job().max_crashes is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes()
        | st.uuids() | st.decimals(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )
)  # fmt: skip
def test_a_message_comes_back_as_kombu_would_read_it(value: Any) -> None:
    message = {"headers": {"value": value}, "properties": {}, "body": "[]"}
    try:
        payload = encode(message)
    except UnicodeEncodeError:
        return
    claim = Claim(Job(id="a", payload=payload, attempt=1), bytes(16))
    theirs = loads(payload)
    theirs["properties"]["delivery_tag"] = "tag"
    assert repr(delivered(claim, "tag")) == repr(theirs)


# -- the shelf


def test_what_is_put_is_there(shelf: Shelf) -> None:
    assert shelf.get(["a", "b"]) == [None, None]
    shelf.put({"a": b"1", "b": b""})
    shelf.put({"b": b"\x002"})
    assert shelf.get(["b", "none", "a"]) == [b"\x002", None, b"1"]
    shelf.put({"ab": b"3", 'a["x",': b"4"})
    assert shelf.starting("a") == {"a": b"1", 'a["x",': b"4", "ab": b"3"}
    shelf.drop(["a", "none"])
    assert list(shelf.starting("a")) == ['a["x",', "ab"]


def test_what_is_over_is_gone_and_told_once(shelf: Shelf) -> None:
    shelf.put({"brief": b"1"}, 0.0)
    shelf.put({"long": b"2"}, 3600.0)
    shelf.put({"ever": b"3"})
    assert shelf.get(["brief", "long", "ever"]) == [None, b"2", b"3"]
    assert shelf.starting("b") == {}
    shelf.keep(["brief"], 3600.0)
    assert shelf.get(["brief"]) == [None], "it was over"
    shelf.keep(["long", "ever"], 0.0)
    assert shelf.get(["long", "ever"]) == [None, b"3"], "what has no end gets none"
    assert sorted(shelf.tidy(10)) == ["brief", "long"]
    assert shelf.tidy(10) == []


def test_no_number_is_counted_twice(shelf: Shelf) -> None:
    numbers: list[int] = []

    def count() -> None:
        for _ in range(25):
            numbers.append(shelf.count("n"))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 101))
    assert shelf.get(["n"]) == [b"100"]
    assert [shelf.count("over", 0.0) for _ in range(2)] == [1, 1]


def test_what_is_counted_once_has_its_number_for_good(shelf: Shelf) -> None:
    assert [shelf.count("n", 60.0, once) for once in ("a", "b", "a", "c", "b")] == [1, 2, 1, 3, 2]
    assert shelf.count("n") == 4
    assert shelf.count("n", 0.0, "over") == 5
    assert shelf.count("n", 60.0, "over") == 6, "its number had passed away"


def test_two_open_it_at_once(store: Any) -> None:
    found: list[Shelf] = []
    threads = [threading.Thread(target=lambda: found.append(shelf_of(store))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    found[0].put({"a": b"1"})
    assert found[3].get(["a"]) == [b"1"]


def test_other_stores_say_what_to_use() -> None:
    memory: Any = connect("memory://")
    with pytest.raises(Unsupported, match="outlast\\+sqlite"):
        shelf_of(memory)


# -- places


def test_a_queue_that_ends_takes_its_bindings_along(shelf: Shelf) -> None:
    places = Places(shelf)
    places.declare_exchange("news", "fanout")
    places.declare_queue("stays", {"durable": True})
    places.declare_queue("goes", {"arguments": {"x-expires": 60_000}})
    for queue in ("stays", "goes", "never"):
        places.bind("news", "", None, queue)
    places.keep(["stays", "goes"])
    assert {queue for _, _, queue in places.table("news")} == {"stays", "goes", "never"}
    shelf.keep([*shelf.starting("bound"), *shelf.starting("queue")], 0.0)
    assert [queue for _, _, queue in places.table("news")] == ["stays"]
    assert places.ended() == ["goes"]
    assert places.queue("goes") is None
    places.delete_queue("stays")
    assert places.table("news") == []
    assert places.exchange_kind("news") == "fanout"
    places.delete_exchange("news")
    assert places.exchange_kind("news") is None


# -- channels


def test_a_task_that_no_queue_would_get_is_refused(tmp_path: Path) -> None:
    """Other brokers take it, and it is lost."""
    with kombu.Connection(f"outlast+sqlite:///{tmp_path}/app.db") as connection:
        exchange = kombu.Exchange("tasks", type="topic")
        producer = connection.Producer(exchange=exchange)
        producer.publish("news for nobody", routing_key="x.y")
        with pytest.raises(OperationalError, match="no queue is bound"):
            producer.publish([], routing_key="x.y", headers={"task": "t", "id": "1"})
        kombu.Queue("q", exchange, routing_key="x.*")(connection.default_channel).declare()
        producer.publish([], routing_key="x.y", headers={"task": "t", "id": "1"})
        assert connection.default_channel._size("q") == 1


def test_bindings_are_known_to_other_processes(tmp_path: Path) -> None:
    """Here: to another connection, which has declared nothing."""
    url = f"outlast+sqlite:///{tmp_path}/app.db"
    with kombu.Connection(url) as one, kombu.Connection(url) as other:
        fanout = kombu.Exchange("all", type="fanout")
        for name in ("a", "b"):
            kombu.Queue(name, fanout)(one.default_channel).declare()
        other.Producer().publish("hello", exchange="all")
        assert [one.default_channel._size(name) for name in ("a", "b")] == [1, 1]


def test_threads_that_publish_share_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outlast.stores.sqlite.writer import Writer

    commits: list[int] = []
    held = threading.Event()
    transact = Writer._transact

    def counted(self: Writer, group: Any) -> Any:
        if held.is_set():
            # The first of them waits for all: each thread has a call there, or in its hands.
            held.clear()
            until(lambda: len(group) + len(self._waiting) >= 8, 60.0, "all have a call")
        if any(op.jobs for op in group):
            commits.append(len(group))
        return transact(self, group)

    monkeypatch.setattr(Writer, "_transact", counted)
    with kombu.Connection(f"outlast+sqlite:///{tmp_path}/app.db") as connection:
        channels = [connection.channel() for _ in range(8)]
        go = threading.Barrier(8)

        def publish(channel: Any) -> None:
            producer = kombu.Producer(channel)
            go.wait()
            for _ in range(25):
                producer.publish("x", routing_key="q")

        threads = [threading.Thread(target=publish, args=(channel,)) for channel in channels]
        for channel in channels:
            kombu.Producer(channel).publish("x", routing_key="q")  # where to is known then
        commits.clear()
        held.set()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert channels[0]._size("q") == 208
        assert max(commits) >= 4, "of 8 calls in two commits one has half"
        commits.clear()
        producer = connection.Producer()
        with producer.batch(max_size=100):
            for _ in range(100):
                producer.publish("x", routing_key="q")
        assert len(commits) <= 2


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("sender", ["a program", "a worker"])
def test_a_message_that_may_be_stored_is_sent_again_as_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: bool, sender: str
) -> None:
    """Celery's retry of a publish: by the same properties, or in a worker by the same headers."""
    app = Celery("sends", broker=f"outlast+sqlite:///{tmp_path}/app.db", set_as_current=False)
    app.conf.task_publish_retry_policy = {"interval_start": 0, "interval_step": 0}
    add, tries = Shared.add, 0

    def unsure(self: Shared, jobs: Any) -> None:
        nonlocal tries
        tries += 1
        if stored or tries > 1:
            add(self, jobs)
        if tries == 1:
            raise EnqueueUncertain("nobody knows", ids=tuple(job.id for job in jobs))

    monkeypatch.setattr(Shared, "add", unsure)
    send: Any = app.amqp._retry_publish if sender == "a worker" else lambda call, *args: call(*args)
    send(app.send_task, "t", (1,))
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("celery")
        assert (tries, queue.qsize()) == (2, 1)
        message = queue.get(timeout=60)
        assert not any("unsure" in name for name in {**message.headers, **message.properties})
        message.ack()
        # And what is the same is sent as often as it is sent.
        for _ in range(2):
            send(app.send_task, "t", (1,), {"k": 1}, None, None, "same-id")
        assert queue.qsize() == 2
        queue.close()
    app.close()


def test_what_is_noted_of_a_message_is_for_the_same_body_alone() -> None:
    jobs = [Job(id="id", queue="q")]
    for headers in ({}, {"task": "t"}):
        message = {"body": "1", "headers": headers, "properties": {}}
        note_ids(message, jobs)
        assert noted_ids({**message, "body": "2"}) == {}
        assert noted_ids(message) == {}, "once in all"
        note_ids(message, jobs)
        assert noted_ids(message) == {"q": "id"}
        assert message == {"body": "1", "headers": headers, "properties": {}}


def test_the_store_is_opened_once_and_closed_with_its_last_user(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    one, other = Shared.take(url), Shared.take(url)
    assert one is other
    one.leave()
    other.shelf.put({"a": b"1"})
    other.leave()
    with pytest.raises(OutlastError):
        other.shelf.get(["a"])
    again = Shared.take(url)
    assert again.shelf.get(["a"]) == [b"1"]
    again.leave()


def test_a_result_backend_may_be_collected_while_somebody_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector runs in any thread, also in the midst of ``take``."""
    monkeypatch.setattr(collected, "PATIENCE", 0.01)
    url = f"sqlite:///{tmp_path}/app.db"
    backend = OutlastResults(Celery(set_as_current=False), url=url)
    backend.set("a", "1")
    (shared,) = (each for each in Shared._open.values() if each.store.url == url)
    with Shared._lock:
        del backend
        gc.collect()
        assert shared in Shared._open.values()
    until(lambda: shared not in Shared._open.values(), 60.0, "its only user has left")


def test_a_claim_on_its_way_goes_back_when_the_store_is_closed(tmp_path: Path) -> None:
    """Else it would be held by a worker that ended in order, which nobody looks after."""
    url = f"sqlite:///{tmp_path}/app.db"
    for _ in range(20):
        shared = Shared.take(url)
        shared.add([job_for(shared.chance.uuid7(), "q", {"properties": {}}, b"{}", 0.0, None)])
        flying = shared.hands.claim(["q"], 10)
        shared.leave()
        assert flying.done()
    shared = Shared.take(url)
    assert shared.store.depth_now("q").ready == 20
    assert len(shared.hands.take(shared.hands.claim(["q"], 100))) == 20
    shared.leave()


def test_no_password_is_shown() -> None:
    broker = "outlast+postgresql://me:S3cr3t@127.0.0.1:1/x"
    connection = cast("Any", kombu.Connection(broker))
    assert "S3cr3t" not in connection.as_uri()
    assert connection.as_uri().startswith("outlast+postgresql://me")
    with pytest.raises(OperationalError) as found:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
    assert "S3cr3t" not in str(found.value)
