"""Canvas as jobs: what follows what, once each, however often it is worked out."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from msgspec import json
from msgspec.structs import replace

from outlast.contrib.celery.canvas import Signature, chain, chord, group, read
from outlast.contrib.celery.flow import (
    ACCUMULATE,
    CHORD,
    LOOK,
    Place,
    ends_of,
    freeze,
    jobs_of,
    what_follows,
    what_follows_death,
    what_replaces,
    when_complete,
)
from outlast.contrib.celery.values import plain, stands_in
from outlast.job import Failure, Job, Status

if TYPE_CHECKING:
    from collections.abc import Sequence


def s(name: str, *args: Any, **options: Any) -> Signature:
    return Signature(name, args, None, options)


def make(sig: Signature, message: dict[str, Any], place: Place) -> Job:
    return Job(id=str(sig.id), task=sig.task, payload=json.encode(plain(message)), key=place.key)


def started(sig: Signature) -> list[Job]:
    numbers = count()
    return jobs_of(freeze(sig, lambda: f"id-{next(numbers)}"), Place(), make)


def message_of(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.decode(job.payload)
    return found


def names(jobs: Sequence[Job]) -> list[str | None]:
    return [job.task for job in jobs]


def test_a_chain_goes_on_with_what_it_was_given() -> None:
    (first,) = started(chain(s("a", 1), s("b", 2), s("c", 3)))
    (second,) = what_follows(first.id, message_of(first), "got", make)
    assert (second.task, message_of(second)["args"]) == ("b", ["got", 2])
    (third,) = what_follows(second.id, message_of(second), "more", make)
    assert (third.task, message_of(third)["args"]) == ("c", ["more", 3])
    assert what_follows(third.id, message_of(third), None, make) == []
    assert message_of(third)["root"] == first.id
    assert message_of(third)["parent"] == second.id


def test_it_is_the_same_whoever_works_it_out() -> None:
    """A run that is repeated stores the same ids: the second time nothing is added."""
    work = chain(s("a", link=[s("l"), chain(s("m"), s("n"))]), group(s("b"), s("c")), s("d"))
    (first,) = started(work)
    again = [what_follows(first.id, message_of(first), 1, make) for _ in range(2)]
    assert again[0] == again[1]
    ids = [job.id for job in again[0]]
    assert len(set(ids)) == len(ids)
    assert names(again[0]) == ["l", "m", CHORD, "b", "c"]


def test_a_chord_waits_for_the_last_of_its_members() -> None:
    work = chord([chain(s("a"), s("b")), s("c"), chord([s("d")], s("e"))], s("total"))
    jobs = started(work)
    assert names(jobs) == [CHORD, "a", "c", CHORD, "d"]
    outer = jobs[0]
    plan = message_of(outer)
    members = [done(id, n) for n, id in enumerate(plan["ids"])]
    assert len(members) == 3

    def complete(members: Sequence[Job | None]) -> list[Job]:
        before: list[Job | None] = [None for _ in plan["before"]]
        return when_complete(outer.id, plan, [*members, *before], value_of, make)

    assert complete([members[0], members[1], None]) == []
    running = replace(members[2], status=Status.RUNNING)
    assert complete([members[0], members[1], running]) == []
    (body,) = complete(members)
    assert (body.task, message_of(body)["args"]) == ("total", [[0, 1, 2]])
    # Under a key that outlives the job: a look that comes late starts nothing.
    assert body.key == f"chord-{outer.id}"
    assert complete(members) == [body]


def test_groups_within_groups_keep_their_shape() -> None:
    member = chain(s("a"), group(s("b"), chain(s("c"), group(s("d"), s("e")))))
    outer, *_ = started(chord([group(s("f"), s("g")), member, s("h")], s("total")))
    plan = message_of(outer)
    members = [done(id, n) for n, id in enumerate(plan["ids"])]
    before: list[Job | None] = [None for _ in plan["before"]]
    (body,) = when_complete(outer.id, plan, [*members, *before], value_of, make)
    assert message_of(body)["args"] == [[0, 1, [2, [3, 4]], 5]]
    # One that was stored before there were shapes is finished as it was begun.
    del plan["shape"]
    (body,) = when_complete(outer.id, plan, [*members, *before], value_of, make)
    assert message_of(body)["args"] == [[0, 1, 2, 3, 4, 5]]


def test_a_member_that_died_without_a_word_fails_the_body() -> None:
    """Its worker died with it, so it told nobody: the chord's own job finds that out."""
    jobs = started(chord([chain(s("a"), s("b")), s("c")], s("total", link_error=[s("err")])))
    plan = message_of(jobs[0])
    crashed = Job(
        id=plan["before"][0], status=Status.DEAD, failure=Failure(kind="crash", message="killed")
    )
    # Of the chain, the second step was never stored.
    (body,) = when_complete(jobs[0].id, plan, [None, done("x", 1), crashed], value_of, make)
    assert "killed" in message_of(body)["failed"]
    (errback,) = what_follows_death(body.id, message_of(body), {"type": "", "message": ""}, make)
    assert errback.task == "err"


def test_each_end_of_a_member_has_somebody_look() -> None:
    outer, member = started(chord([s("a")], s("total")))
    (after,) = what_follows(member.id, message_of(member), 1, make)
    assert (after.task, message_of(after)) == (LOOK, {"of": outer.id})
    (after,) = what_follows_death(member.id, message_of(member), {}, make)
    assert (after.task, message_of(after)) == (LOOK, {"of": outer.id})


def test_a_group_in_the_middle_is_a_chord() -> None:
    (first,) = started(chain(s("a"), group(s("b"), s("c")), s("d"), s("e")))
    jobs = what_follows(first.id, message_of(first), 7, make)
    assert names(jobs) == [CHORD, "b", "c"]
    assert [message_of(job)["args"] for job in jobs[1:]] == [[7], [7]]
    plan = message_of(jobs[0])
    (body,) = when_complete(
        jobs[0].id, plan, [done(id, n) for n, id in enumerate(plan["ids"])], value_of, make
    )
    assert names([body]) == ["d"]
    assert [step["task"] for step in message_of(body)["rest"]] == ["e"]


def test_whoever_is_called_after_a_whole_is_called_beside_those_of_its_last() -> None:
    """``link`` of a chain or of a chord, as an option of the call, took the place of the last's."""
    last = s("b", link=[s("own")])
    (first,) = started(chain(s("a"), last, link=[s("of all")]))
    (second,) = what_follows(first.id, message_of(first), 1, make)
    assert names(what_follows(second.id, message_of(second), 1, make)) == ["own", "of all"]
    (body,) = started(chord([], last, link=[s("of all")]))
    assert names(what_follows(body.id, message_of(body), 1, make)) == ["own", "of all"]
    assert last.options["link"] == [s("own")]


def test_what_stands_in_has_all_that_the_one_had() -> None:
    whole = chain(s("a", link=[s("linked")], link_error=[s("on error")]), s("b"))
    chord_, member, _ = started(chord([whole, s("c")], s("total")))
    message = message_of(member)
    work = chain(s("x"), group(s("y"), s("z")))
    result, jobs = what_replaces(member.id, message, work, make)
    assert (result, jobs) == what_replaces(member.id, message, work, make)
    others = stands_in(json.encode(result))
    assert others is not None
    (first,) = jobs
    assert message_of(first)["errbacks"][0]["task"] == "on error"
    assert names(what_follows_death(first.id, message_of(first), {}, make)) == ["on error", LOOK]
    inner, *parts = what_follows(first.id, message_of(first), 1, make)
    assert set(others.before) == {first.id, *(part.id for part in parts)}
    plan = message_of(inner)
    members = [done(id, n) for n, id in enumerate(plan["ids"])]
    (end,) = when_complete(inner.id, plan, members, value_of, make)
    assert (end.task, end.id, message_of(end)["args"]) == (ACCUMULATE, others.end, [[0, 1]])
    # And from there on as from the one.
    after = what_follows(end.id, message_of(end), [0, 1], make)
    assert names(after) == ["linked", "b"]
    assert after[1].id in message_of(chord_)["ids"]
    assert names(what_follows(after[1].id, message_of(after[1]), 2, make)) == [LOOK]


def test_an_empty_header_starts_the_body_at_once() -> None:
    (body,) = started(chord([], s("total")))
    assert (body.task, message_of(body)["args"]) == ("total", [[]])


def test_signatures_through_json() -> None:
    work = chain(s("a", 1), chord([s("b"), group(s("c"))], s("d")), s("e"))
    again = read(json.decode(json.encode(plain(work))))
    assert repr(again) == repr(work)
    numbers = [iter(range(99)), iter(range(99))]
    first, second = (
        freeze(one, lambda own=own: f"id-{next(own)}")  # type: ignore[misc]
        for one, own in zip((work, again), numbers, strict=True)
    )
    assert ends_of(first) == ends_of(second)


def done(id: str, value: int) -> Job:
    return Job(id=id, status=Status.DONE, result=json.encode(value))


def value_of(job: Job) -> Any:
    return json.decode(job.result or b"null")
