"""Processes that fork with a store open: the child may open it too, and neither hurts the other."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import job
from tests.proof.processes import fork
from tests.stores.children import Child, say

from outlast.errors import ConfigurationError, StoreClosed
from outlast.stores.sqlite.forks import Forks
from outlast.stores.sqlite.store import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stores.conftest import Opener

pytestmark = pytest.mark.timeout(240)  # each child is a Python that has to start first


def used_in_the_child(path: str) -> None:
    store = SqliteStore(path)
    store.open_now()
    store.add_now([job("before")])

    def child() -> None:
        calls: dict[str, Callable[[], object]] = {
            "add_now": lambda: store.add_now([job("lost")]),
            "claim_now": lambda: store.claim_now(["default"], [None], 1, 60, "w"),
            "depth_now": lambda: store.depth_now("default"),
            "get": lambda: asyncio.run(as_coroutine(store)),
        }
        for call in calls.values():
            with pytest.raises(StoreClosed, match=f"{os.getppid()}; open it here too"):
                call()
        store.close_now()  # does nothing that the parent would notice

    code = fork(child).wait(60)
    store.add_now([job("after")])
    say([code, store.depth_now("default").live])
    store.close_now()


async def as_coroutine(store: SqliteStore) -> object:
    return await store.get(["before"])


def test_what_the_parent_has_opened_is_closed_in_the_child(db: Path) -> None:
    with Child(used_in_the_child, path=str(db)) as child:
        assert child.hear() == [0, 2]
        child.end()


def ends_like_a_program(path: str) -> None:
    """The child ends by ``sys.exit``, with all that Python does then."""
    store = SqliteStore(path)
    store.open_now()
    for n in range(5):
        store.add_now([job(f"p{n}")])
        pid = os.fork()
        if not pid:
            raise SystemExit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    say([store.depth_now("default").live, Path(f"{path}-wal").exists()])
    store.close_now()


def test_the_end_of_a_child_does_not_close_the_parents_store(db: Path) -> None:
    with Child(ends_like_a_program, path=str(db)) as child:
        assert child.hear() == [5, True]
        child.end()


def outlives_its_parent(path: str, same: bool) -> None:
    """The child opens the store too. The parent closes it meanwhile, and must leave the log."""
    store = SqliteStore(path)
    store.open_now()
    store.add_now([job("parent-0")])
    to_child, to_parent = os.pipe(), os.pipe()

    def child() -> None:
        mine = store if same else SqliteStore(path)
        mine.open_now()
        for n in range(10):
            mine.add_now([job(f"child-early-{n}")])
        os.write(to_parent[1], b"x")
        os.read(to_child[0], 1)
        for n in range(10):
            mine.add_now([job(f"child-late-{n}")])
        assert mine.depth_now("default").live == 21
        # It ends without closing: what it was told is stored has to be.

    forked = fork(child)
    os.read(to_parent[0], 1)
    store.close_now()
    say(Path(f"{path}-wal").exists())
    os.write(to_child[1], b"x")
    say(forked.wait(60))


@pytest.mark.parametrize("same", [False, True])
def test_a_child_keeps_what_it_acknowledged_when_the_parent_closes(
    db: Path, opened: Opener, same: bool
) -> None:
    """SQLite alone loses it: the parent's close deletes the log that the child goes on writing."""
    with Child(outlives_its_parent, path=str(db), same=same) as child:
        assert child.hear() is True, "the log of the child was taken away"
        assert child.hear() == 0
        child.end()
    assert opened(db).depth_now("default").live == 21


def forks_while_it_writes(path: str, rounds: int) -> None:
    """A thread adds and reads all the time; each fork opens the store, adds one and ends."""
    store = SqliteStore(path)
    store.open_now()
    over = threading.Event()
    added = 0

    def write() -> None:
        nonlocal added
        while not over.is_set():
            store.add_now([job(f"parent-{added}")])
            store.depth_now("default")
            added += 1

    thread = threading.Thread(target=write)
    thread.start()
    codes = []
    for n in range(rounds):

        def child(n: int = n) -> None:
            mine = SqliteStore(path)
            mine.open_now()
            mine.add_now([job(f"child-{n}")])
            mine.close_now()

        codes.append(fork(child).wait(60))
    over.set()
    thread.join()
    say([codes, added])
    store.close_now()


def test_forks_in_the_middle_of_work(db: Path, opened: Opener) -> None:
    """No child inherits a lock that nobody will ever open, and none hears of a broken file."""
    with Child(forks_while_it_writes, path=str(db), rounds=25) as child:
        codes, added = child.hear(120)
        child.end()
    assert codes == [0] * 25
    assert added > 0
    assert opened(db).depth_now("default").live == added + 25


def grandchildren(path: str) -> None:
    store = SqliteStore(path)
    store.open_now()
    store.add_now([job("one")])

    def child() -> None:
        mine = SqliteStore(path)
        mine.open_now()
        mine.add_now([job("two")])

        def grandchild() -> None:
            its = SqliteStore(path)
            its.open_now()
            its.add_now([job("three")])
            its.close_now()

        assert fork(grandchild).wait(60) == 0
        mine.add_now([job("four")])
        mine.close_now()

    say(fork(child).wait(60))
    store.add_now([job("five")])
    store.close_now()


def test_children_of_children(db: Path, opened: Opener) -> None:
    with Child(grandchildren, path=str(db)) as child:
        assert child.hear() == 0
        child.end()
    assert opened(db).depth_now("default").live == 5


def forks_in_an_unquiet_moment(path: str) -> None:
    """As while another thread copies the store: SQLite's own state can't be relied on then."""
    store = SqliteStore(path)
    store.open_now()

    def child() -> None:
        try:
            SqliteStore(path).open_now()
        except ConfigurationError as error:
            say(str(error))
        other = SqliteStore(f"{path}.other")
        other.open_now()
        other.add_now([job()])
        other.close_now()

    with Forks.busy(path):
        say(fork(child).wait(60))
    say(fork(lambda: SqliteStore(path).open_now()).wait(60))
    store.close_now()


def test_where_the_locks_can_not_be_taken_over_it_says_so(db: Path) -> None:
    with Child(forks_in_an_unquiet_moment, path=str(db)) as child:
        message = child.hear()
        assert message.startswith(f"{db} was in use when process {child.pid} forked this one")
        assert "spawn" in message
        assert child.hear() == 0, "other files are not concerned"
        assert child.hear() == 0, "nor are later forks"
        child.end()


def closed_before(path: str) -> None:
    store = SqliteStore(path)
    store.open_now()
    store.add_now([job("one")])
    store.close_now()

    def child() -> None:
        mine = SqliteStore(path)
        mine.open_now()
        mine.add_now([job("two")])
        mine.close_now()
        assert not Path(f"{path}-wal").exists(), "the last to close leaves one file"

    say(fork(child).wait(60))


def test_a_store_closed_before_the_fork_is_no_matter(db: Path) -> None:
    with Child(closed_before, path=str(db)) as child:
        assert child.hear() == 0
        child.end()
