"""The tasks of the simulated world: one of each temper, all of which tell when they run."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.proof.sim.hosts import Process
from tests.proof.sim.loop import OWNER

from outlast import Cancel, Outlast, Retry, RetryPolicy, Snooze, current

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from tests.proof.sim.world import World

    from outlast.task import Call, Task

__all__ = ["Tasks", "author", "make_calls"]

DAY = 86400.0


def author(result: bytes | None) -> tuple[int, int] | None:
    """Which run made this result: its process and its attempt."""
    if not result:
        return None
    pid, attempt = result.decode().strip("[]").split(",")
    return int(pid), int(attempt)


class Tasks:
    """Registers the tasks with an app; what they do is noted in their world's journal."""

    def __init__(self, app: Outlast, world: World, days: bool) -> None:
        self._app = app
        self._world = world
        self.long_pause = DAY if days else 1.5
        self.by_name: dict[str, Task[..., Any]] = {}
        patient = RetryPolicy(attempts=4, delay=self.long_pause, factor=2.0, cap=10 * DAY)
        forever: dict[str, Any] = {"keep": None, "keep_key": 4000 * DAY}
        self._add(self.quick, **forever)
        self._add(self.slow, **forever, max_crashes=None)
        self._add(self.plain, **forever)
        self._add(self.fails, **forever, retry=patient)
        self._add(self.hopeless, **forever, retry=RetryPolicy(attempts=2, delay=0.5))
        self._add(self.steers, **forever, retry=RetryPolicy(attempts=50, delay=0.1))
        self._add(self.gives_up, **forever)
        self._add(self.hangs, **forever, timeout=1.5, retry=2)
        self._add(self.laned, **forever, max_crashes=None, lane=lambda lane, seconds: lane)
        self._add(self.poison, **forever)

    def _add(self, fn: Callable[..., Any], **options: Any) -> None:
        self.by_name[fn.__name__] = self._app.task(name=fn.__name__, **options)(fn)

    @contextmanager
    def told(self, lane: str = "") -> Iterator[list[int]]:
        """Note the begin and the end of this run; yields what makes the result traceable."""
        run, process = current(), OWNER.get()
        assert isinstance(process, Process)
        counts = self._world.begins(process, run.id, run.attempt, lane)
        note = "error"
        try:
            yield [process.pid, run.attempt]
            note = "done"
        except asyncio.CancelledError:
            note = "stopped"
            raise
        except Snooze:
            note = "snooze"
            raise
        except Cancel:
            note = "cancel"
            raise
        finally:
            self._world.ends(process, run.id, run.attempt, lane, note, counts)

    async def quick(self, number: int) -> list[int]:
        with self.told() as result:
            return result

    async def slow(self, number: int, seconds: float) -> list[int]:
        with self.told() as result:
            for turn in range(4):
                current().progress(turn / 4, "at work")
                await self._world.loop.sleep(seconds / 4)
            return result

    def plain(self, number: int) -> list[int]:
        with self.told() as result:
            return result

    async def fails(self, number: int, times: int) -> list[int]:
        with self.told() as result:
            await self._world.loop.sleep(0.1)
            if self._world.failures(current().id) < times:
                raise ValueError("on purpose")
            return result

    async def hopeless(self, number: int) -> list[int]:
        with self.told():
            raise ValueError("never")

    async def steers(self, number: int, snoozes: bool, seconds: float) -> list[int]:
        with self.told() as result:
            await self._world.loop.sleep(0.05)
            if self._world.failures(current().id) < 2:
                raise Snooze(seconds) if snoozes else Retry(seconds)
            return result

    async def gives_up(self, number: int) -> list[int]:
        with self.told():
            raise Cancel("on purpose")

    async def hangs(self, number: int) -> list[int]:
        with self.told() as result:
            await self._world.loop.sleep(60.0)
            return result

    async def laned(self, lane: str, seconds: float) -> list[int]:
        with self.told(lane) as result:
            await self._world.loop.sleep(seconds)
            return result

    async def poison(self, number: int) -> list[int]:
        """Takes its worker with it, and whatever runs beside it."""
        with self.told() as result:
            await self._world.loop.sleep(0.02)
            process = OWNER.get()
            assert isinstance(process, Process)
            if not self._world.calm:
                self._world.kill(process)
                await self._world.loop.sleep(1.0)
            return result


def make_calls(tasks: Tasks, dice: random.Random, number: int) -> list[Call[Any]]:
    """What one producer sends in one go: usually one call, sometimes a batch, or a keyed one."""
    point = dice.random()
    if point < 0.1:
        return [tasks.by_name["quick"].call(number) for _ in range(dice.randint(2, 8))]
    if point < 0.2:
        key = f"key-{dice.randrange(6)}"
        return [tasks.by_name["quick"].using(key=key).call(dice.choice((7, 7, 7, 8)))]
    return [_call(tasks, dice, number)]


def _call(tasks: Tasks, dice: random.Random, number: int) -> Call[Any]:
    kinds = {
        "quick": 20, "slow": 22, "plain": 6, "fails": 12, "hopeless": 4, "steers": 12,
        "gives_up": 3, "hangs": 5, "laned": 14, "poison": 2,
    }  # fmt: skip
    (name,) = dice.choices(list(kinds), list(kinds.values()))
    task = tasks.by_name[name]
    pause = dice.choice((0.0, 0.5, 3.0)) if tasks.long_pause < DAY else dice.uniform(60, 3 * DAY)
    match name:
        case "laned":
            return task.call(f"lane-{dice.randrange(2)}", dice.choice((0.0, 0.3, 2.0)))
        case "slow":
            args: tuple[Any, ...] = (number, dice.choice((0.2, 1.0, 4.0, 9.0)))
        case "fails":
            args = (number, dice.choice((1, 2, 3, 4)))
        case "steers":
            args = (number, dice.random() < 0.6, pause)
        case _:
            args = (number,)
    if dice.random() < 0.3:
        delay = dice.choice((0.3, 2.0, 8.0)) if tasks.long_pause < DAY else dice.uniform(1, 5 * DAY)
        task = task.using(delay=delay)
    elif dice.random() < 0.1:
        task = task.using(expires=dice.choice((0.5, 5.0)))
    if dice.random() < 0.3:
        task = task.using(priority=dice.choice((-50, -1, 1, 50)))
    return task.call(*args)
