"""What a process holds and settles: what races with the thread that stores acks."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from outlast import lifeline
from outlast.contrib.kombu.messages import job_for
from outlast.contrib.kombu.shared import Shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 60.0


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    shared = Shared.take(f"sqlite:///{tmp_path}/app.db")
    shared.add([job_for("a", "q", {"properties": {}}, b"{}", 0.0, None)])
    yield shared
    shared.leave()


def took(shared: Shared) -> Any:
    (claim,) = shared.hands.take(shared.hands.claim(["q"], 1))
    return claim


def test_what_was_given_back_and_delivered_again_is_still_marked_as_delivered(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would come back after a kill as if nobody had begun with it, and not be counted."""
    hands, store = shared.hands, shared.store
    settle = store.settle_now

    def settle_and_deliver(verdicts: Any) -> Any:
        lost = settle(verdicts)
        monkeypatch.undo()
        hands.deliver(took(shared))
        return lost

    tag = hands.deliver(took(shared))
    monkeypatch.setattr(store, "settle_now", settle_and_deliver)
    hands.give_back(tag)
    hands.flush()
    line: Any = hands._lifeline
    assert isinstance(line, lifeline.Lifeline)
    assert list(line._taken) == ["a"]
    (held,) = hands._held
    hands.done(held)
    hands.flush()
    assert not line._taken
    assert not hands._marked


def test_what_is_flushed_is_stored_whoever_stores_it(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, store = shared.hands, shared.store
    settle = store.settle_now
    begun, go = threading.Event(), threading.Event()
    stored: list[Any] = []

    def slowly(verdicts: Any) -> Any:
        begun.set()
        assert go.wait(PATIENCE)
        lost = settle(verdicts)
        stored.extend(verdicts)
        return lost

    monkeypatch.setattr(store, "settle_now", slowly)
    hands.done(hands.deliver(took(shared)))
    assert begun.wait(PATIENCE), "the thread has taken it out"
    found: list[int] = []

    def flush() -> None:
        hands.flush()
        found.append(len(stored))

    flushing = threading.Thread(target=flush)
    flushing.start()
    flushing.join(0.3)
    assert flushing.is_alive(), "it says that it is stored, and it isn't"
    go.set()
    flushing.join(PATIENCE)
    assert found == [1]


def test_who_closes_just_when_acks_are_about_to_be_stored_is_heard(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the thread that stores them waits for more, and who closes waits for it: for ever."""
    hands = shared.hands

    class Event(threading.Event):
        def clear(self) -> None:
            """``close`` has come to say it in this very moment."""
            hands._closing.set()
            self.set()
            super().clear()

    monkeypatch.setattr(hands, "_settle_now", Event())
    hands.done(hands.deliver(took(shared)))
    for thread in hands._threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), thread.name
    monkeypatch.undo()
    hands.flush()
    assert shared.store.depth_now("q").live == 0
