"""What the compatible surface does not have: it says so, and what to use."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from outlast.contrib.celery.compat import Celery, Signature, chord, group
from outlast.contrib.celery.flow import CHORD, LOOK
from outlast.contrib.celery.results import rebuilt
from outlast.contrib.celery.values import plain, restore
from outlast.errors import ConfigurationError, DecodeError, EncodeError, JobFailed, Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable


def made() -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)

    def add(x: int, y: int) -> int:
        return x + y

    app.task(name="shop.add")(add)
    return app


def task(app: Any, **options: Any) -> Any:
    return app.task(name="shop.other", **options)(lambda: None)


REFUSALS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "schedules": (lambda app: app.conf.update(beat_schedule={"a": {}}), "cron"),
    "periodic tasks": (lambda app: app.add_periodic_task(1.0, None), "cron"),
    "pickle": (lambda app: app.conf.update(task_serializer="pickle"), "JSON"),
    "pickle for one task": (lambda app: task(app, serializer="pickle"), "JSON"),
    "pickle for one call": (
        lambda app: app.tasks["shop.add"].apply_async((1, 2), serializer="yaml"), "JSON"
    ),
    "old names": (lambda app: app.conf.update(CELERY_TASK_SERIALIZER="json"), "small letters"),
    "no such setting": (lambda app: app.conf.update(task_ack_late=True), "no setting"),
    "rate limits": (lambda app: task(app, rate_limit="10/m"), "--concurrency"),
    "rate limits by annotation": (
        lambda app: (app.conf.update(task_annotations={"*": {"rate_limit": "1/s"}}), task(app)),
        "--concurrency",
    ),
    "soft limits": (lambda app: task(app, soft_time_limit=5), "time_limit"),
    "exchanges": (
        lambda app: app.tasks["shop.add"].apply_async((1, 2), exchange="e"), "queue="
    ),
    "more members of a chord": (
        lambda app: app.tasks["shop.add"].add_to_chord(None), "known beforehand"
    ),
    "inspect": (lambda app: app.control.inspect(), "status, jobs"),
    "anything else": (lambda app: app.events, "docs/celery.md"),
    "worker_main": (lambda app: app.worker_main(["worker"]), "outlast worker"),
    "stamps": (lambda app: app.tasks["shop.add"].s(1, 2).stamp(a=1), "headers"),
    "children": (lambda app: app.AsyncResult("a").children, "keep the results"),
    "saved groups": (lambda app: app.GroupResult("a", []).save(), "keep the ids"),
    "routers that are functions": (
        lambda app: (
            app.conf.update(task_routes=[lambda *_: None]), app.tasks["shop.add"].delay(1, 2)
        ),
        "dictionary",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_it_says_what_to_use(what: str) -> None:
    act, way = REFUSALS[what]
    with pytest.raises(Unsupported, match=way):
        act(made())


def test_a_broker_that_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTLAST_URL", raising=False)
    app = Celery("shop", broker="amqp://guest:sesame@localhost//", set_as_current=False)
    with pytest.raises(ConfigurationError, match="OUTLAST_URL") as caught:
        _ = app.outlast
    assert "sesame" not in str(caught.value)
    monkeypatch.setenv("OUTLAST_URL", "memory://elsewhere")
    assert app.outlast.url == "memory://elsewhere"


def test_routes_and_defaults() -> None:
    app = made()
    app.conf.task_routes = {"shop.*": {"queue": "shop"}, "feed.a": "feed"}
    app.conf.task_default_queue = "rest"
    assert app._queue({}, app.tasks["shop.add"]) == "shop"
    assert app._queue({"queue": "own"}, app.tasks["shop.add"]) == "own"
    assert app._queue({}, None, Signature("feed.a")) == "feed"
    assert app._queue({}, None, Signature("feed.b")) == "rest"


def test_values_travel_as_with_celery() -> None:
    from datetime import UTC, date, datetime
    from decimal import Decimal
    from uuid import UUID

    from kombu.utils.json import dumps, loads

    value = {
        "a": [1, 2.5, None, True, "x"], "d": datetime(2026, 1, 2, 3, 4, tzinfo=UTC),
        "t": date(2026, 1, 2), "c": Decimal("1.10"), "u": UUID(int=7), "b": b"abc", "r": b"\xff",
        "n": {"l": ({"deep": Decimal(1)},)},
    }  # fmt: skip
    import json

    assert plain(value) == json.loads(dumps(value))
    assert restore(json.loads(dumps(value))) == loads(dumps(value))
    assert plain({2: "a", None: "b", True: "c"}) == json.loads(
        dumps({2: "a", None: "b", True: "c"})
    )
    with pytest.raises(EncodeError, match="object"):
        plain([object()])
    with pytest.raises(DecodeError, match="evil"):
        restore([{"__type__": "evil", "__value__": "x"}])


@pytest.mark.parametrize("kind", ["os.system", "subprocess.Popen", "builtins.print", "print", ""])
def test_what_a_store_says_is_not_called(kind: str) -> None:
    assert isinstance(rebuilt(made(), kind, "text"), JobFailed)


def test_what_is_absent_is_not_there_for_hasattr_either() -> None:
    app = made()
    assert not hasattr(app, "connection_for_read")
    assert not hasattr(app.control, "ping")


def test_exceptions_of_the_tasks_modules_come_back() -> None:
    app = made()
    assert rebuilt(app, "KeyError", repr("k")).args == KeyError("k").args
    assert rebuilt(app, "KeyError", "no key (").args == ("no key (",)
    assert type(rebuilt(app, f"{__name__}.OwnError", "k")) is OwnError


class OwnError(Exception):
    def __init__(self, one: int, two: int) -> None:
        raise AssertionError("not called")


def test_threads_that_ask_at_once_get_one_app_and_all_of_it() -> None:
    app = made()
    found: list[Any] = []
    go = threading.Barrier(8)

    def ask() -> None:
        go.wait()
        engine = app.outlast
        found.append((engine, set(engine.tasks) >= {"shop.add", CHORD, LOOK}))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(app.outlast, True)] * 8


def test_empty_groups_and_chords() -> None:
    app = made()
    assert len(group([], app=app)) == 0
    body = app.tasks["shop.add"].s(1)
    assert repr(chord([], body, app=app)) == "chord([], shop.add(1))"
