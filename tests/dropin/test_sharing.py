"""Several processes on one queue: each item goes to one of them, and `maxsize` holds for all."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.dropin.children import child

from outlast import PriorityQueue, Queue
from outlast.queue import pump, supply

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queues.db?durability=process"


CONSUMER = """
    queue = Queue(name="q", url=URL)
    async def consume():
        async for item in queue:
            if item == "stop":
                return
            say(item)
    say("ready")
    await consume()
    queue.task_done("stop")
"""


@pytest.mark.timeout(240)
def test_each_item_goes_to_one(url: str) -> None:
    total, processes = 400, 3
    with ExitStack() as stack:
        programs = [stack.enter_context(child(CONSUMER, url)) for _ in range(processes)]
        for program in programs:
            program.expect("ready")

        async def produce() -> None:
            async with Queue[object](name="q", url=url) as queue:
                await asyncio.gather(*(queue.put(n) for n in range(total)))
                await asyncio.wait_for(queue.join(), 60)
                await queue.put_many(["stop"] * processes)
                await asyncio.wait_for(queue.join(), 60)

        asyncio.run(produce())
        got = [program.end() for program in programs]
    assert sorted(int(line) for lines in got for line in lines) == list(range(total))


@pytest.mark.timeout(240)
def test_maxsize_holds_across_producers(url: str) -> None:
    producer = """
        queue = Queue(maxsize=5, name="q", url=URL)
        who = os.getpid()
        for number in range(40): await queue.put([who, number])
        say("done")
    """
    most = 0
    got: list[list[int]] = []
    with ExitStack() as stack:
        programs = [stack.enter_context(child(producer, url)) for _ in range(2)]

        async def consume() -> None:
            nonlocal most
            async with Queue[list[int]](maxsize=5, name="q", url=url) as queue:
                while (await queue.depth()).queued < 5:
                    pass
                while len(got) < 80:
                    most = max(most, (await queue.depth()).queued)
                    got.append(await asyncio.wait_for(queue.get(), 60))
                    queue.task_done()
                assert queue.qsize() == 0

        asyncio.run(consume())
        for program in programs:
            assert program.end() == ["done"]
    assert most == 5
    for who in {item[0] for item in got}:
        assert [number for its, number in got if its == who] == list(range(40))


def test_a_put_elsewhere_wakes_a_getter_soon(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "NEWS", 30.0)  # so that one who is not woken waits for long
    with child("""
        queue = Queue(name="q", url=URL)
        say("ready")
        for _ in range(20):
            sys.stdin.readline()
            await queue.put("x")
    """, url) as program:  # fmt: skip

        async def consume() -> list[float]:
            loop, waits = asyncio.get_running_loop(), []
            async with Queue[str](name="q", url=url) as queue:
                for _ in range(20):
                    get = asyncio.create_task(queue.get())
                    await asyncio.sleep(0)
                    started = loop.time()
                    program.say("go")
                    await asyncio.wait_for(get, 60)
                    waits.append(loop.time() - started)
                    queue.task_done()
            return waits

        program.expect("ready")
        waits = sorted(asyncio.run(consume()))
    assert waits[len(waits) // 2] < 10.0, "somebody polls"


def test_a_rank_put_elsewhere_overtakes_within_moments(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supply, "QUICK", 60.0)  # so that some are ahead on a busy machine too
    with child("""
        queue = PriorityQueue(name="q", url=URL)
        say("ready")
        sys.stdin.readline()
        await queue.put(-1)
        say("put")
    """, url) as program:  # fmt: skip
        program.expect("ready")

        async def consume() -> list[int]:
            async with PriorityQueue[int](name="q", url=url) as queue:
                await queue.put_many(list(range(200)))
                got = [await queue.get() for _ in range(20)]
                assert len(queue._line.supply.window) > 0
                program.say("go")
                await asyncio.to_thread(program.expect, "put")
                loop = asyncio.get_running_loop()
                later = loop.time() + 0.15
                while loop.time() < later:
                    await asyncio.sleep(0)
                got += [await queue.get() for _ in range(3)]
                for item in got:
                    queue.task_done(item)
                return got

        got = asyncio.run(consume())
    assert got == [*range(20), -1, 20, 21]


def test_what_was_claimed_ahead_goes_to_others_when_nobody_asks_for_it(url: str) -> None:
    with child("""
        from outlast.queue import supply
        supply.QUICK = 60.0  # so that some are ahead on a busy machine too
        queue = Queue(name="q", url=URL)
        for _ in range(20):
            say(await queue.get())
        say("ahead" if len(queue._line.supply.window) else "nothing ahead")
        await forever()
    """, url) as program:  # fmt: skip

        async def consume() -> list[int]:
            async with Queue[int](name="q", url=url) as queue:
                await queue.put_many(list(range(200)))
                await asyncio.to_thread(program.expect, *map(str, range(20)), "ahead")
                got: list[int] = []
                async with asyncio.timeout(60):
                    while len(got) < 180:
                        got.append(await queue.get())
                        queue.task_done()
                return got

        assert sorted(asyncio.run(consume())) == list(range(20, 200))
