"""What becomes of the items when a program is killed, or just ends."""

from __future__ import annotations

import asyncio
import gc
import time
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.dropin.children import child
from tests.proof.patience import until

from outlast import LifoQueue, PriorityQueue, Queue
from outlast.stores.sqlite.writer import Writer

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queues.db?durability=process"


def rest(queue: Queue[Any]) -> list[Any]:
    """All items that wait, in order; they are done then."""
    items = []
    while not queue.empty():
        items.append(queue.get_nowait())
        queue.task_done()
    return items


def test_what_is_not_done_comes_again_in_order_before_what_is_newer(url: str) -> None:
    with child("""
        queue = Queue(name="q", url=URL)
        for number in range(10): await queue.put(number)
        for number in range(6): await queue.get()
        for number in (1, 3): queue.task_done(number)
        while (await queue.depth()).live > 8: await asyncio.sleep(0)
        say("ready")
        await forever()
    """, url) as program:  # fmt: skip
        program.expect("ready")
        program.kill()
    queue: Queue[int] = Queue(name="q", url=url)
    started = time.monotonic()
    queue.put_nowait(10)
    assert rest(queue) == [0, 2, 4, 5, 6, 7, 8, 9, 10]
    assert time.monotonic() - started < 10.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(PriorityQueue, [0, 1, 2, 3, 4, 5, 6, 7]), (LifoQueue, [0, 2, 4, 6, 1, 3, 5, 7])],
)
def test_the_order_of_its_sisters_survives_too(
    url: str, kind: type[Queue[int]], expected: list[int]
) -> None:
    with child(f"""
        queue = {kind.__name__}(name="q", url=URL)
        for number in (7, 5, 3, 1, 6, 4, 2, 0): await queue.put(number)
        for _ in range(3): await queue.get()
        say("ready")
        await forever()
    """, url) as program:  # fmt: skip
        program.expect("ready")
        program.kill()
    assert rest(kind(name="q", url=url)) == expected


def test_of_two_consumers_the_second_is_done_first(url: str) -> None:
    """`task_done()` names no item. Settling the oldest would lose A here."""
    with child("""
        queue = Queue(name="q", url=URL)
        held = asyncio.Event()
        async def slow():
            say("slow has", await queue.get())
            held.set()
            await forever()
        async def quick():
            await held.wait()
            say("quick has", await queue.get())
            queue.task_done()
        await queue.put("A")
        await queue.put("B")
        task = asyncio.create_task(slow())
        await quick()
        while (await queue.depth()).live > 1: await asyncio.sleep(0)
        say("B is settled")
        await forever()
    """, url) as program:  # fmt: skip
        program.expect("slow has A", "quick has B", "B is settled")
        program.kill()
    queue: Queue[str] = Queue(name="q", url=url)
    assert rest(queue) == ["A"]


def test_unfinished_counts_what_others_hold_and_join_tells_the_truth(url: str) -> None:
    with child("""
        queue = Queue(name="q", url=URL)
        for number in range(5): await queue.put(number)
        await queue.get(); await queue.get()
        say("ready")
        await forever()
    """, url) as program:  # fmt: skip
        program.expect("ready")
        queue: Queue[int] = Queue(name="q", url=url)
        assert queue.qsize() <= 3  # it may have taken out some ahead
        assert queue._unfinished_tasks == 5
        program.kill()

    async def main() -> None:
        async with queue:
            join = asyncio.create_task(queue.join())
            got = [await asyncio.wait_for(queue.get(), 60) for _ in range(5)]
            assert sorted(got) == [0, 1, 2, 3, 4]
            for item in got[1:]:
                queue.task_done(item)
            for _ in range(50):
                await asyncio.sleep(0)
            assert not join.done()
            queue.task_done(got[0])
            await asyncio.wait_for(join, 60)

    asyncio.run(main())


def test_a_dead_consumers_items_come_to_a_living_one(url: str) -> None:
    with child("""
        queue = Queue(name="q", url=URL)
        await queue.put("a"); await queue.put("b")
        await queue.get()
        say("ready")
        await forever()
    """, url) as program:  # fmt: skip
        program.expect("ready")

        async def main() -> None:
            async with Queue[str](name="q", url=url) as queue:
                assert await queue.get() == "b"
                waiting = asyncio.create_task(queue.get())
                await asyncio.sleep(0)
                program.kill()
                killed = time.monotonic()
                assert await asyncio.wait_for(waiting, 60) == "a"
                assert time.monotonic() - killed < 10.0
                queue.task_done("a")
                queue.task_done("b")

        asyncio.run(main())


def test_a_program_that_ends_without_closing_settles_and_gives_back(url: str) -> None:
    with child("""
        queue = Queue(name="q", url=URL)
        await queue.put_many(list(range(100)))
        for _ in range(20):
            await queue.get()
            queue.task_done()
        await queue.get()
        say("end")
    """, url) as program:  # fmt: skip
        assert program.end() == ["end"]
    queue: Queue[int] = Queue(name="q", url=url)
    assert queue.qsize() == 80
    assert queue._unfinished_tasks == 80
    assert rest(queue) == list(range(20, 100))


def test_an_object_that_nobody_uses_gives_everything_back(url: str) -> None:
    async def main() -> None:
        queue: Queue[int] = Queue(name="q", url=url)
        await queue.put_many(list(range(50)))
        for _ in range(10):
            await queue.get()
        queue.task_done(0)
        del queue

    asyncio.run(main())
    gc.collect()
    queue: Queue[int] = Queue(name="q", url=url)
    assert rest(queue) == list(range(1, 50))


def test_a_queue_may_be_collected_by_the_thread_of_its_own_store(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector runs in whatever thread makes an object; that one can't wait for itself."""
    queue: Queue[int] = Queue(name="q", url=url)
    for number in range(10):
        queue.put_nowait(number)
    assert queue.get_nowait() == 0
    store: Any = queue._line.store
    job = queue._line.job(10, b"")
    serve = Writer._serve

    def serve_amid_garbage(self: Writer, group: Any) -> None:
        gc.collect()
        serve(self, group)

    gc.disable()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Writer, "_serve", serve_amid_garbage)
            cycle: list[Any] = [queue]
            cycle.append(cycle)
            del queue, cycle
            store.add_now([job])
    finally:
        gc.enable()
    again: Queue[int] = Queue(name="q", url=url)
    until(lambda: again.qsize() == 11, 60.0, "it gave back what it held")
    assert rest(again) == list(range(11))


def test_a_queue_may_be_collected_amid_the_opening_of_another(url: str) -> None:
    """The collector runs wherever an object is made: here in the thread that holds the lock which
    the collected queue's writer needs to end. That thread can't wait for it without an end."""
    with child("""
        import gc
        from outlast import collected
        from outlast.stores.sqlite.forks import Forks

        class Collecting(dict):
            def setdefault(self, path, made):
                say("collects", gc.collect() > 0)
                return super().setdefault(path, made)

        collected.PATIENCE = 0.1
        gc.disable()
        queue = Queue(name="q", url=URL)
        await queue.put_many([0, 1, 2])
        await queue.get()
        cycle = [queue]
        cycle.append(cycle)
        del queue, cycle
        Forks._open = Collecting(Forks._open)
        other = Queue(name="q", url=URL)
        await other.put(3)
        say("goes on")
        while (await other.depth()).ready < 4: await asyncio.sleep(0)
        say("has all")
    """, url) as program:  # fmt: skip
        assert program.end() == ["collects True", "goes on", "has all"]
    queue: Queue[int] = Queue(name="q", url=url)
    assert rest(queue) == [0, 1, 2, 3]


@pytest.mark.timeout(240)
def test_nothing_confirmed_is_lost_and_nothing_invented_when_producers_are_killed(
    url: str,
) -> None:
    confirmed: list[int] = []
    for round_ in range(4):
        with child(f"""
            queue = Queue(name="q", url=URL)
            numbers = itertools.count({round_ * 1_000_000})
            async def produce():
                while True:
                    number = next(numbers)
                    await queue.put(number)
                    say(number)
            await asyncio.gather(*(produce() for _ in range(20)))
        """, url) as program:  # fmt: skip
            for _ in range(Random(round_).randrange(1, 300)):
                confirmed.append(int(program.line()))
            confirmed += map(int, program.kill())
    found = rest(Queue[int](name="q", url=url))
    assert len(found) == len(set(found))
    assert set(confirmed) <= set(found)
    assert len(found) - len(confirmed) <= 4 * 20, "more than was on its way"


@pytest.mark.timeout(360)
def test_every_item_is_handled_though_consumers_are_killed(url: str) -> None:
    total, handled, kills = 80, [], 0
    filling: Queue[int] = Queue(name="q", url=url)
    asyncio.run(filling.put_many(list(range(total))))
    asyncio.run(filling.close())
    chance = Random(5)
    while True:
        most = chance.randrange(1, 30)
        with child(f"""
            queue = Queue(name="q", url=URL)
            lives = iter(range({most}))
            async def consume():
                while True:
                    number = await queue.get()
                    if next(lives, None) is None: await forever()
                    say(number)
                    await asyncio.sleep(0)
                    queue.task_done()
            consumers = [asyncio.create_task(consume()) for _ in range(5)]
            await queue.join()
            say("done")
            await forever()
        """, url) as program:  # fmt: skip
            lines = [program.line()]
            for _ in range(chance.randrange(most)):
                if lines[-1] != "done":
                    lines.append(program.line())
            lines += program.kill()
        kills += 1
        done = [line for line in lines if line == "done"]
        handled += [int(line) for line in lines if line != "done"]
        if done:
            break
        assert kills < 200
    assert kills > 2  # none handles more than 29
    assert set(handled) == set(range(total))
    queue: Queue[int] = Queue(name="q", url=url)
    assert rest(queue) == []


def test_a_forked_child_leaves_the_parents_items_alone(url: str) -> None:
    """What the parent has in memory or in hand isn't the child's; the child opens anew."""
    with child("""
        from outlast.queue import supply
        supply.QUICK = 60.0  # so that some are ahead on a busy machine too
        queue = Queue(name="q", url=URL, commit="each")
        for number in range(20): await queue.put(number)
        got = [await queue.get() for _ in range(6)]
        ahead = len(queue._line.supply.window)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            first = queue.get_nowait()
            say("child", first == 6 + ahead, ahead > 0)
            queue.task_done()
            queue._line.close_now()
            os._exit(0)
        os.waitpid(pid, 0)
        assert await queue.get() == 6
        for number in range(7): queue.task_done(number)
    """, url) as program:  # fmt: skip
        assert program.end() == ["child True True"]
    left = rest(Queue[int](name="q", url=url))
    assert len(left) == 12
    assert left == sorted(left)


def test_a_forked_child_is_none_of_the_parents_tasks(url: str) -> None:
    """Though a copy of the one that was running is there: else its helpers would act for it."""
    with child("""
        queue = Queue(name="q", url=URL)
        await queue.put(1)
        await queue.get()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            say("child", queue._caller())
            os._exit(0)
        os.waitpid(pid, 0)
        queue.task_done()
    """, url) as program:  # fmt: skip
        assert program.end() == ["child None"]
    assert rest(Queue[int](name="q", url=url)) == []


def test_what_a_stopped_loop_left_behind_is_settled_by_the_next_call(url: str) -> None:
    """The task that was to settle it is there and isn't done, and nothing will ever run it."""
    queue = Queue[int](name="q", url=url)
    queue.put_nowait(1)
    queue.put_nowait(2)

    async def consume() -> None:
        await queue.get()
        queue.task_done()

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(consume())
        assert queue._line.settling
        queue.get_nowait()
        queue.task_done()
        assert not queue._line.settling._waiting
        assert rest(Queue[int](name="q", url=url)) == []
        loop.run_until_complete(queue.close())
    finally:
        loop.close()
