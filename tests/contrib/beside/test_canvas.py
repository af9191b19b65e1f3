"""What a Celery app sends runs here, with all that is to follow it; told where it looks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group
from tests.contrib.beside.pair import Failed

if TYPE_CHECKING:
    from tests.contrib.beside.pair import Pair

pytestmark = pytest.mark.needs("redis")


async def test_a_call_and_its_result(pair: Pair) -> None:
    async with pair.app.worker():
        sent = await pair.send("add", 2, y=3)
        assert await pair.get(sent) == 5
        assert await pair.app.handle(sent).result() == 5


async def test_an_error(pair: Pair) -> None:
    async with pair.app.worker():
        with pytest.raises(Failed, match="FAILURE ValueError: oops"):
            await pair.done(pair.s("boom", "oops"))


async def test_chains_groups_and_chords(pair: Pair) -> None:
    s = pair.s
    works: list[tuple[Any, Any]] = [
        (chain(s("add", 1, 2), s("add", 10), s("add", 100)), 113),
        (chord([s("add", 1, n) for n in range(5)], s("total")), 15),
        (chain(s("add", 1, 2), group(s("add", 10), s("add", 20)), s("total")), 36),
        (chain(s("add", 1, 2), chain(s("add", 1), s("add", 2)), s("add", 3)), 9),
        (chain(group(s("add", 1, 1), s("add", 2, 2)), s("total"), s("add", 4)), 10),
        (chord([chain(s("add", 1, 1), s("add", 5)), s("add", 2, 2)], s("total")), 11),
    ]
    async with pair.app.worker():
        for work, expected in works:
            assert await pair.done(work) == expected, work
        members = [s("add", 1, n).set(task_id=f"member-{n}") for n in range(3)]
        await pair.apply(group(members))
        assert [await pair.get(f"member-{n}") for n in range(3)] == [1, 2, 3]
    left = pair.redis.say("KEYS", "celery-taskset-meta-*.[jstd]")
    assert left.startswith(b"*0"), left


async def test_groups_within_groups(pair: Pair) -> None:
    """What the body gets is what Celery 5.7's own workers give it, on Redis."""
    s = pair.s

    def one(number: int) -> Any:
        return s("add", number, 0, immutable=True)

    two = chain(one(1), group(one(2), one(3)))
    deep = chain(one(5), group(one(2), chain(one(6), group(one(7), one(8)))))
    works: list[tuple[Any, Any]] = [
        # A group right in a header is unrolled, from its end.
        (chord([group(one(1), one(2)), one(3)], s("say")), [2, 1, 3]),
        (chain(one(1), group(group(one(2), one(3)), one(4)), s("say")), [3, 2, 4]),
        # One that is the end of a member is a list in the list.
        (chord([two, one(4)], s("say")), [[2, 3], 4]),
        (chord([one(4), two], s("say")), [4, [2, 3]]),
        (chord([chord([one(1), one(2)], s("say")), one(4)], s("say")), [[[1, 2], {}], 4]),
        (chord([chain(group(one(1), one(2)), group(one(3), one(4))), one(5)], s("say")),
         [[3, 4], 5]),
        (chain(one(1), group(deep, one(4)), s("say")), [[2, [7, 8]], 4]),
    ]  # fmt: skip
    # Whoever begins it: here a callback, whose signatures have no ids yet.
    late = chord([two, one(4)], s("say").set(task_id="late"))
    async with pair.app.worker():
        for work, expected in works:
            assert await pair.done(work) == [expected, {}], work
        await pair.apply(s("add", 1, 1, immutable=True).set(link=[late]))
        assert await pair.get("late") == [[[2, 3], 4], {}]


async def test_links_and_error_links(pair: Pair) -> None:
    link = pair.s("add", 1).set(task_id="the-link")
    errback = pair.s("say", "so").set(task_id="the-errback")
    async with pair.app.worker():
        await pair.apply(pair.s("add", 2, 3).on_error(errback).set(link=[link]))
        assert await pair.get("the-link") == 6
        await pair.apply(pair.s("boom", "no").on_error(errback).set(task_id="the-boom"))
        assert await pair.get("the-errback") == ["the-boom", "so", {}]


async def test_a_chain_that_breaks_fails_to_its_end(pair: Pair) -> None:
    s = pair.s
    async with pair.app.worker():
        with pytest.raises(Failed, match="FAILURE ValueError: broken"):
            await pair.done(chain(s("boom", "broken"), s("add", 1), s("add", 2)))
        with pytest.raises(Failed, match=r"FAILURE .*broken"):
            await pair.done(chord([s("add", 1, 1), s("boom", "broken")], s("total")))
    assert pair.ran == [(1, 1)]
