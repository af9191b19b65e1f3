"""The answer to a thread that waits for it, and to one that comes later."""

from __future__ import annotations

import asyncio
import gc
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from outlast.stores.replies import Blocked, Landing, Reply, deliver


def call() -> tuple[Reply[int], Blocked[int]]:
    reply: Reply[int] = Reply()
    blocked: Blocked[int] = Blocked()
    reply.reply = blocked
    return reply, blocked


def test_a_thread_that_waits_is_answered() -> None:
    reply, blocked = call()
    assert reply.wanted
    reply.answer = 7
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(blocked.result)
        deliver([reply])
        assert waiting.result(60) == 7
    assert blocked.result() == 7
    assert blocked.done()
    assert not reply.wanted


def test_an_error_is_raised_where_it_is_waited_for() -> None:
    reply, blocked = call()
    reply.error = ValueError("no")
    deliver([reply])
    with pytest.raises(ValueError, match="no"):
        blocked.result()


def awaited(loop: asyncio.AbstractEventLoop) -> tuple[Reply[int], asyncio.Future[int]]:
    reply: Reply[int] = Reply()
    reply.reply = future = loop.create_future()
    reply.answer = 7
    return reply, future


async def test_answers_from_other_threads_land_in_the_loop() -> None:
    loop = asyncio.get_running_loop()
    Landing.prepare(loop)
    Landing.prepare(loop)
    assert Landing.of(loop) is not None or not hasattr(os, "eventfd")
    for _ in range(100):
        calls = [awaited(loop) for _ in range(3)]
        for reply, _ in calls:
            await asyncio.to_thread(deliver, [reply])
        async with asyncio.timeout(60):
            assert [await future for _, future in calls] == [7, 7, 7]


async def test_who_is_answered_soon_comes_after_what_the_others_begin() -> None:
    loop = asyncio.get_running_loop()
    Landing.prepare(loop)
    seen: list[str] = []
    first, second = awaited(loop), awaited(loop)

    def begin(_: object) -> None:
        loop.call_soon(seen.append, "begun")

    first[1].add_done_callback(begin)
    second[1].add_done_callback(lambda _: seen.append("second"))
    deliver([first[0]])
    deliver([second[0]], soon=True)
    async with asyncio.timeout(60):
        while len(seen) < 2:
            await asyncio.sleep(0)
    assert seen == ["begun", "second"]


def test_a_loop_that_watches_no_descriptors_is_answered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []

    def refuse(fd: int, _: object) -> None:
        given.append(fd)
        raise OSError("none here")

    loop = asyncio.new_event_loop()
    monkeypatch.setattr(loop, "add_reader", refuse)
    try:
        Landing.prepare(loop)
        assert Landing.of(loop) is None
        for fd in given:
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(fd)
        reply, future = awaited(loop)
        deliver([reply])
        assert loop.run_until_complete(future) == 7
    finally:
        loop.close()


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="Linux has it")
def test_its_descriptor_goes_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = os.eventfd

    def noted(*how: int) -> int:
        made.append(make(*how))
        return made[-1]

    monkeypatch.setattr(os, "eventfd", noted)
    loop = asyncio.new_event_loop()
    Landing.prepare(loop)
    (early, _), (late, _) = awaited(loop), awaited(loop)
    deliver([early])
    os.fstat(made[0])
    loop.close()
    deliver([late])
    gc.collect()
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(made[0])


@pytest.mark.skipif(not hasattr(os, "eventfd"), reason="only on Linux is there one to close")
async def test_answers_arrive_though_somebody_closed_the_descriptor_they_come_by() -> None:
    loop = asyncio.get_running_loop()
    Landing.prepare(loop)
    landing = Landing.of(loop)
    assert landing is not None
    os.close(landing._fd)
    try:
        with ThreadPoolExecutor(1) as pool:
            for number in range(3):
                reply: Reply[int] = Reply()
                answer: asyncio.Future[int] = loop.create_future()
                reply.reply, reply.answer = answer, number
                pool.submit(deliver, [reply])
                assert await asyncio.wait_for(answer, 30) == number
    finally:
        again = os.eventfd(0)
        if again != landing._fd:
            os.dup2(again, landing._fd)
            os.close(again)
