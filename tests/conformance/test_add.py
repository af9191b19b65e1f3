"""`add`: all or nothing, answers aligned, an id never twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.conformance.steps import add, get, ids, job, start, take

from outlast.errors import ConfigurationError, KeyConflict
from outlast.job import Added, Failure, Job, Progress, Status, done

if TYPE_CHECKING:
    from tests.conformance.conftest import Place
    from tests.conformance.steps import FullStore
    from tests.fakes import FakeClock


async def test_answers_are_aligned_with_the_input(store: FullStore) -> None:
    answers = await store.add([job("b"), job("a"), job("c")])
    assert list(answers) == [Added("b"), Added("a"), Added("c")]


async def test_nothing_to_add(store: FullStore) -> None:
    assert list(await store.add([])) == []


async def test_every_field_comes_back(store: FullStore, place: Place, clock: FakeClock) -> None:
    full = Job(
        id="full",
        queue="mail.out",
        task="shop.mail:send",
        payload=bytes(range(256)),
        codec="raw",
        headers={"trace": "00-ab", "ü": "\N{SNOWMAN}"},
        priority=-7,
        rank=b"\x00\xff\x80",
        run_at=clock.now() - 5.5,
        expires_at=clock.now() + 60.25,
        max_attempts=9,
        max_crashes=None,
        timeout=2.5,
        key="k \N{SNOWMAN}",
        digest=b"\x00" * 15 + b"\xff",
        keep_key=12.5,
        keep=None,
        lane="lane 1",
    )
    await add(store, full)
    stored = await get(await place.reopen(), "full")
    for field in Job.__struct_fields__:
        expected = clock.now() if field == "created_at" else getattr(full, field)
        assert getattr(stored, field) == expected, field


async def test_defaults_come_back(store: FullStore, clock: FakeClock) -> None:
    await add(store, Job(id="x"))
    assert await get(store, "x") == Job(id="x", created_at=clock.now())


async def test_what_a_store_decides_is_not_taken_from_the_caller(
    store: FullStore, clock: FakeClock
) -> None:
    claimed = {"attempt": 3, "failures": 2, "crashes": 1, "suspect": True, "status": Status.DONE}
    ended = {"started_at": 1.0, "finished_at": 2.0, "failure": Failure(kind="error")}
    told = {"result": b"1", "progress": Progress(id="x"), "worker": "me", "created_at": 1.0}
    await add(store, Job(id="x", **claimed, **ended, **told))  # type: ignore[arg-type]
    assert await get(store, "x") == Job(id="x", created_at=clock.now())


async def test_the_same_id_again_changes_nothing(store: FullStore, place: Place) -> None:
    await add(store, job("a", payload=b"1"), job("b"))
    again = await store.add([job("new"), job("a", payload=b"1")])
    assert list(again) == [Added("new"), Added("a", created=False)]
    store = await place.reopen()
    assert list(await store.add([job("a", payload=b"1")])) == [Added("a", created=False)]
    assert ids(await take(store)) == ["a", "b", "new"]


@pytest.mark.parametrize("other", [{"payload": b"2"}, {"task": "other"}, {"queue": "other"}])
async def test_the_same_id_with_other_content_is_a_conflict(
    store: FullStore, other: dict[str, object]
) -> None:
    await add(store, job("a", payload=b"1"))
    answers = await store.add([job("a", **({"payload": b"1"} | other))])
    assert list(answers) == [Added("a", created=False, conflict=True)]
    stored = await get(store, "a")
    assert (stored.payload, stored.task, stored.queue) == (b"1", None, "default")


async def test_the_same_id_twice_in_a_batch(store: FullStore) -> None:
    answers = await store.add([job("a", payload=b"1"), job("a", payload=b"1"), job("a")])
    assert list(answers) == [
        Added("a"),
        Added("a", created=False),
        Added("a", created=False, conflict=True),
    ]
    assert [claim.job.payload for claim in await take(store)] == [b"1"]


async def test_an_id_is_remembered_while_its_job_is_kept(store: FullStore) -> None:
    running = await start(store, job("a"))
    assert list(await store.add([job("a")])) == [Added("a", created=False)]
    await store.settle([done(running)])
    assert list(await store.add([job("a")])) == [Added("a", created=False)]
    assert await take(store) == []


async def test_an_id_is_free_again_when_its_job_was_not_kept(store: FullStore) -> None:
    running = await start(store, job("a", keep=0))
    await store.settle([done(running)])
    assert list(await store.add([job("a")])) == [Added("a")]


async def test_a_bad_job_in_the_middle_stores_none(store: FullStore) -> None:
    with pytest.raises(ConfigurationError, match="priority"):
        await store.add([job("a"), job("b", priority=1000), job("c")])
    assert list(await store.get(["a", "b", "c"])) == [None] * 3


async def test_a_conflict_at_the_end_stores_none(store: FullStore) -> None:
    await add(store, job("first", key="k", digest=b"1"))
    jobs = [job(f"j{i}", key=f"key {i}") for i in range(40)]
    with pytest.raises(KeyConflict):
        await store.add([*jobs, job("x"), job("last", key="k", digest=b"2")])
    assert list(await store.get(["j0", "j39", "x", "last"])) == [None] * 4
    assert (await store.depth("default")).ready == 1
    await add(store, *jobs)


async def test_many_at_once_keep_each_callers_order(store: FullStore, place: Place) -> None:
    other = await place.open()
    batches = [[job(f"{i}-{n}") for n in range(20)] for i in range(10)]
    await asyncio.gather(*(add((store, other)[i % 2], *b) for i, b in enumerate(batches)))
    order = ids(await take(store, 1000))
    assert len(order) == 200
    for i in range(10):
        mine = [id_ for id_ in order if id_.startswith(f"{i}-")]
        assert mine == [f"{i}-{n}" for n in range(20)]


@pytest.mark.parametrize("few", [1, 3])
async def test_ids_of_every_printable_sign(store: FullStore, few: int) -> None:
    """None of them parts one id from the next, or means something in a language of a store."""
    await add(store, job("first"))  # a store may go another way for the first of its kind
    signs = [chr(code) for code in range(0x20, 0x7F)]
    odd = [f"{sign}" for sign in signs] + [f"{sign},a{sign}" for sign in signs] + ["".join(signs)]
    for at in range(0, len(odd), few):
        some = odd[at : at + few]
        assert list(await store.add([job(id) for id in some])) == [Added(id) for id in some]
    claims = await take(store, len(odd) + 1)
    assert ids(claims) == ["first", *odd]
    assert not await store.settle([done(claim) for claim in claims])
    for id in odd:
        assert (await get(store, id)).status is Status.DONE


async def test_big_batches(store: FullStore) -> None:
    await add(store, *(job(f"{n:05}", payload=b"%d" % n) for n in range(3000)))
    claims = await take(store, 5000)
    assert ids(claims) == [f"{n:05}" for n in range(3000)]
    assert [claim.job.payload for claim in claims] == [b"%d" % n for n in range(3000)]


async def test_namespaces_do_not_see_each_other(store: FullStore, place: Place) -> None:
    other = await place.open("other")
    await add(store, job("a", key="k", payload=b"1"), job("mine"))
    await add(other, job("a", key="k", digest=b"2", payload=b"2"))
    assert (await get(store, "a")).payload == b"1"
    assert (await get(other, "a")).payload == b"2"
    assert list(await other.get(["mine"])) == [None]
    assert ids(await take(other)) == ["a"]
    assert ids(await take(store)) == ["a", "mine"]
