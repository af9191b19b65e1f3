"""Many callers that add one job each at once: one call for the writer, an answer for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.conformance.steps import ids, job, take

from outlast.errors import EnqueueUncertain, StoreClosed, StoreUnavailable
from outlast.job import Alike, Job
from outlast.stores.replies import deliver
from outlast.stores.sqlite.moves import Moves
from outlast.stores.sqlite.op import Op, Pile, fail, pile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.stores.conftest import Opener

    from outlast.job import Added
    from outlast.stores.sqlite.op import Single


@pytest.fixture
def store(opened: Opener, tmp_path: Any) -> Any:
    return opened(tmp_path / "jobs.db")


async def test_each_is_answered_for_its_own_job(store: Any) -> None:
    await store.add([job("7"), job("9")])
    names = [str(number) for number in range(100)]
    calls = [asyncio.ensure_future(store.add([job(name)])) for name in names]
    await asyncio.sleep(0)
    calls[50].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers.pop(50), asyncio.CancelledError)
    del names[50]
    found: list[Any] = [answer[0] for answer in answers if not isinstance(answer, BaseException)]
    assert [answer.id for answer in found] == names
    assert [answer.id for answer in found if not answer.created] == ["7", "9"]


async def test_kinds_beside_each_other_stay_apart(store: Any) -> None:
    jobs = [job(f"{queue}{n}", queue=queue) for n in range(20) for queue in "ab"]
    await asyncio.gather(*(store.add([each]) for each in jobs))
    for queue in "ab":
        claims = await take(store, 100, queues=[queue])
        assert sorted(ids(claims)) == sorted(f"{queue}{n}" for n in range(20))


async def test_the_one_that_can_not_be_stored_fails_alone(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Moves.add_alike

    def picky(moves: Moves, model: Job, ids: Any, payloads: Sequence[bytes]) -> list[Added]:
        if b'"bad"' in payloads:
            raise ValueError("not this one")
        return write(moves, model, ids, payloads)

    # One after the other they are written by the other way.
    monkeypatch.setattr(Moves, "add_alike", picky)
    jobs = [job(f"{n}", payload=b'"bad"' if n == 3 else b"1") for n in range(8)]
    calls = [store.add(Alike(jobs[0], (each.id,), (each.payload,))) for each in jobs]
    answers: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[3], ValueError)
    assert [answer[0].id for n, answer in enumerate(answers) if n != 3] == list("0124567")
    assert ids(await take(store, 100)) == list("0124567")


def singles(*names: str) -> list[Single]:
    loop = asyncio.get_running_loop()
    model = job("")
    return [(model, loop, loop.create_future(), name, b"1") for name in names]


async def test_what_may_be_stored_or_not_is_said_to_each_of_its_own() -> None:
    calls = singles("a", "b")
    fail(pile(calls), StoreUnavailable("gone"), uncertain=True)
    for _, _, reply, name, _ in calls:
        with pytest.raises(EnqueueUncertain, match="gone; these jobs may or may not") as e:
            await reply
        assert e.value.ids == (name,)


async def test_all_are_told_of_an_error_and_who_has_gone_is_not() -> None:
    calls = singles("a", "b", "c")
    calls[1][2].cancel()
    fail(pile(calls), StoreClosed("closed"))
    for at in (0, 2):
        with pytest.raises(StoreClosed):
            await calls[at][2]
    assert calls[1][2].cancelled()


async def test_callers_of_two_loops_are_two_calls() -> None:
    other = asyncio.new_event_loop()
    try:
        here = singles("a", "c")
        there: list[Single] = [(here[0][0], other, other.create_future(), "b", b"2")]
        calls = pile([here[0], there[0], here[1]])
        assert sorted([*call.jobs.ids] for call in calls if type(call.jobs) is Alike) == [
            ["a", "c"], ["b"],
        ]  # fmt: skip
    finally:
        other.close()


async def test_apart_they_are_the_calls_that_they_were() -> None:
    calls = singles("a", "b")
    [whole] = pile(calls)
    assert isinstance(whole, Pile)
    parts: Sequence[Op[Any]] = whole.apart()
    for part in parts:
        part.answer = part.jobs
    deliver(parts)
    assert [(await call[2])[0].id for call in calls] == ["a", "b"]
