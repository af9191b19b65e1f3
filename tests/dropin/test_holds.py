"""The books of who holds what, alone."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from outlast.job import Claim, Job
from outlast.queue.holds import Holds
from outlast.queue.window import Entry


def entry(item: Any) -> Entry:
    return Entry(Claim(Job(id=f"id-{item}"), b""), item)


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "done", "only", "name"]), st.integers(0, 2)), max_size=60
    )
)
def test_the_books_balance(script: list[tuple[str, int]]) -> None:
    """Whatever is called in whatever order: each item is settled once, and no more than calls."""
    holds, taken, said = Holds(), 0, 0
    held: list[Entry] = []
    settled: list[Entry] = []
    for action, owner in script:
        if action == "take":
            held.append(entry(taken))
            holds.take(held[-1], owner)
            taken += 1
        elif action == "done" and said < taken:
            mine = [each for each in held if each.owner == owner]
            done = holds.done(owner)
            said += 1
            if len(mine) == 1:
                assert mine[0] in done
            settled += done
        elif action == "only":
            done = holds.only()
            assert done == (held if len(held) == 1 and not holds.counted else [])
            said += len(done)
            settled += done
        elif action == "name" and held:
            found = holds.find(owner, held[-1].item)
            assert found is held[-1]
            settled += holds.done_with(found)
            said += 1
        held = [each for each in held if each not in settled]
        assert list(holds) == held or set(holds) == set(held)
        assert len(holds) == len(held)
        assert len(settled) == len(set(settled))
        assert len(settled) + holds.counted == said
        assert holds.covered == (holds.counted >= len(held))
        if held:
            assert holds.counted < len(held) or action == "take"


def test_what_was_counted_before_anything_was_held_is_not_forgotten() -> None:
    """asyncio lets `task_done` be called before the `get` it belongs to."""
    holds = Holds()
    assert holds.done("a") == []
    one, other = entry(1), entry(2)
    holds.take(one, "a")
    assert holds.covered
    assert holds.only() == [], "that call was for it"
    holds.take(other, "a")
    assert set(holds.done("a")) == {one, other}
    assert holds.counted == 0
    assert holds.done("a") == holds.done("a") == []
    holds.take(one, "a")
    holds.take(other, "a")
    assert set(holds.done("a")) == {one, other}
    assert holds.counted == 1, "for one that is still to be taken"


def test_of_equal_items_the_callers_own_is_meant() -> None:
    holds = Holds()
    theirs, own = entry(["x"]), entry(["x"])
    holds.take(theirs, "them")
    holds.take(own, "me")
    for owner, meant in (("me", own), ("them", theirs), ("nobody", theirs)):
        assert holds.find(owner, ["x"]) is meant
    assert holds.find("me", theirs.item) is theirs, "the very object comes first"


def test_release_forgets_one() -> None:
    holds = Holds()
    one, other = entry("x"), entry("x")
    holds.take(one, None)
    holds.take(other, None)
    holds.release(one)
    assert not holds.has(one)
    assert holds.has(other)
    assert holds.find(None, "x") is other
    assert holds.drain() == [other]
    assert len(holds) == 0
    assert holds.find(None, "x") is None
