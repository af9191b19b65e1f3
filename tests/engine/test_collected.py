"""What is done for objects that were collected: never in a way that waits for itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

from outlast import collected
from outlast.collected import when_collected

if TYPE_CHECKING:
    from collections.abc import Callable

if TYPE_CHECKING:
    import pytest


class Owner:
    """Somebody who leaves something behind."""


def lose(act: Callable[[], object]) -> None:
    owner = Owner()
    when_collected(owner, act)
    del owner


def test_it_is_done_when_the_owner_is_gone() -> None:
    seen: list[str] = []
    lose(partial(seen.append, "done"))
    assert seen == ["done"]


def test_an_error_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    lose(fail)
    assert "the disk is gone" in caplog.text
    seen: list[str] = []
    lose(partial(seen.append, "done"))
    assert seen == ["done"]


def test_the_thread_that_loses_the_owner_may_hold_the_lock_that_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collected, "PATIENCE", 0.01)
    lock, done = threading.Lock(), threading.Event()

    def act() -> None:
        with lock:
            done.set()

    with lock:
        lose(act)
        assert not done.is_set()
    assert done.wait(60)


def test_a_thread_of_ours_is_never_waited_for() -> None:
    asked, done = threading.Event(), threading.Event()

    def act() -> None:
        asked.wait(60)
        done.set()

    def serve() -> None:
        """As the writer of a store: what it is asked for is done after what it does now."""
        lose(act)
        asked.set()

    writer = threading.Thread(target=serve, name="outlast-writer")
    writer.start()
    writer.join(60)
    assert done.wait(60)


def test_no_other_thread_does_it_whoever_loses_the_owner() -> None:
    seen: list[str] = []
    done = threading.Event()

    def note() -> None:
        seen.append(threading.current_thread().name)
        done.set()

    for name in ("user", "outlast-writer"):
        done.clear()
        thread = threading.Thread(target=lose, args=(note,), name=name)
        thread.start()
        thread.join(60)
        assert done.wait(60)
    lose(note)
    assert seen == ["outlast-tidy"] * 3


def test_what_was_done_is_not_kept() -> None:
    """Else what an owner leaves behind stays until the next one is lost, however large it is."""

    class Left:
        def tidy(self) -> None: ...

    left = Left()
    alive = weakref.ref(left)
    lose(left.tidy)
    del left
    assert alive() is None


def test_it_is_done_at_the_end_of_the_program() -> None:
    program = """
from functools import partial
from outlast.collected import when_collected
class Owner: pass
one, other = Owner(), Owner()
when_collected(one, partial(print, "one"))
when_collected(other, partial(print, "other"))
del one
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("one\nother\n", "")
