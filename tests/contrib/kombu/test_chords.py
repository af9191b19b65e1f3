"""A chord's parts are counted once each, also when a worker was killed and its task run again."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.app.task import Context
from tests.contrib.kombu.store import look

from outlast.contrib.kombu import results
from outlast.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contrib.kombu.rig import Rig

IDS = ["a", "b", "c"]
GROUP = "a-group"


class Chord:
    """Of three tasks, whose ends are told to the result backend as a worker tells them."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.app: Any = Celery(
            "chords", broker=rig.broker, backend=rig.broker, set_as_current=False
        )
        results = [self.app.AsyncResult(id_) for id_ in IDS]
        self.app.GroupResult(GROUP, results).save(backend=self.app.backend)
        self.body = self.app.signature("total", task_id="body", app=self.app)

    def end(self, id_: str) -> None:
        """One of its tasks has run, and its worker is not heard of again before the ack."""
        body = {**self.body, "chord_size": len(IDS)}
        request = Context(id=id_, group=GROUP, chord=body, ignore_result=False)
        self.app.backend.mark_as_done(id_, IDS.index(id_), request=request)

    def bodies(self) -> int:
        return look(self.rig)[0].live


@pytest.fixture
def chord(rig: Rig) -> Iterator[Chord]:
    chord = Chord(rig)
    yield chord
    chord.app.close()


def test_one_that_ran_twice_is_counted_once(chord: Chord) -> None:
    for id_ in ("a", "a", "b", "a", "b"):
        chord.end(id_)
        assert chord.bodies() == 0
    chord.end("c")
    assert chord.bodies() == 1


def test_one_that_runs_again_when_all_is_over_changes_nothing(chord: Chord) -> None:
    """Celery finds no group any more then, and notes an error as the result of the body."""
    for id_ in (*IDS, *IDS):
        chord.end(id_)
    assert chord.bodies() == 1
    assert chord.app.AsyncResult("body").state == "PENDING"
    # What is left of the count passes away with the results.
    shelf = chord.app.backend._shelf
    assert all(" part " in key or key.endswith(" over") for key in shelf.starting("result chord"))


def test_one_that_runs_again_when_its_worker_died_at_the_end_of_all_changes_nothing(
    chord: Chord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the body had been sent and the group deleted, and nothing else."""
    backend = chord.app.backend
    for id_ in ("a", "b"):
        chord.end(id_)

    class Killed(BaseException):
        pass

    def die(self: Any, key: Any) -> None:
        delete(self, key)
        raise Killed

    delete = type(backend).delete
    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "delete", die)
        with pytest.raises(Killed):
            chord.end("c")
    for id_ in ("c", "b"):
        chord.end(id_)
    assert chord.bodies() == 1
    assert chord.app.AsyncResult("body").state == "PENDING"


def test_an_end_waits_for_a_store_that_is_away(
    chord: Chord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery would acknowledge the task, and its result and the chord would be lost."""
    monkeypatch.setattr(results, "PAUSE", 0.0)
    asked: Counter[str] = Counter()

    class Away:
        """Answers every third time."""

        def __init__(self, shelf: Any) -> None:
            self._shelf = shelf

        def __getattr__(self, name: str) -> Any:
            asked[name] += 1
            if asked[name] % 3:
                raise StoreUnavailable("away")
            return getattr(self._shelf, name)

    kind = type(chord.app.backend)
    with monkeypatch.context() as patch:
        own = kind._shelf
        patch.setattr(kind, "_shelf", property(lambda self: Away(own.fget(self))))
        for id_ in IDS:
            chord.end(id_)
        assert asked.keys() == {"get", "put", "count", "drop", "keep"}
        with pytest.raises(StoreUnavailable):
            chord.app.AsyncResult("a").get()
    assert chord.bodies() == 1
    assert [chord.app.AsyncResult(id_).get(timeout=60) for id_ in IDS] == [0, 1, 2]


def test_the_last_one_is_still_the_last_when_its_worker_died_over_it(
    chord: Chord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when it had been counted, and the body was not sent: the next run sends it."""
    backend = chord.app.backend
    for id_ in ("a", "b"):
        chord.end(id_)

    class Killed(BaseException):
        pass

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(chord.app.GroupResult, "join_native", die)
        patch.setattr(type(backend), "delete", lambda *_: None)  # a kill runs no ``finally``
        patch.setattr(chord.app.GroupResult, "delete", lambda *_, **__: None)
        with pytest.raises(Killed):
            chord.end("c")
    chord.end("b")
    assert chord.bodies() == 0
    chord.end("c")
    assert chord.bodies() == 1
