"""After any calls in any order, the counts of the lines are right and no end is loose."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock

from outlast.chance import SeededChance
from outlast.errors import JobNotFound, KeyConflict, QueueFull
from outlast.job import (
    Death,
    Failure,
    Job,
    Status,
    cancelled,
    dead,
    done,
    give_back,
    retry,
)
from outlast.store import Durability
from outlast.stores.sqlite import moves, schema
from outlast.stores.sqlite.rows import fetch as rows_of
from outlast.stores.sqlite.store import SqliteStore
from outlast.stores.sqlite.verify import verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Claim, Lost, Verdict

OOPS = Failure(kind="error", message="oops")
CRASH = Failure(kind="crash", message="boom")
Move = tuple[int, tuple[Any, ...]]
"""Who acts, and how: the name of a method of ``Game``, and its arguments."""

QUEUES = ["a", "b"]
TASKS = ["t", "u", None]
IDS = [f"id-{n}" for n in range(6)]
WORKERS = ["w1", "w2"]
KINDS = ["done", "retry", "later", "crash", "back", "untouched", "dead", "cancel"]
ENDABLE = [status for status in Status if status is not Status.RUNNING]

some_jobs: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(
        dict,
        id=st.sampled_from(IDS),
        queue=st.sampled_from(QUEUES),
        task=st.sampled_from(TASKS),
        payload=st.sampled_from([b"1", b"2"]),
        priority=st.sampled_from([0, 0, 5]),
        delay=st.sampled_from([None, None, 5.0]),
        ttl=st.sampled_from([None, None, 8.0]),
        key=st.sampled_from([None, None, "k", "l"]),
        digest=st.sampled_from([b"d", b"d", b"e"]),
        keep_key=st.sampled_from([0.0, 10.0]),
        keep=st.sampled_from([0.0, 10.0, None]),
        lane=st.sampled_from([None, None, "x", "y"]),
        max_crashes=st.sampled_from([1, 2, None]),
    ),
    max_size=4,
)
kinds = st.sampled_from(KINDS)
verdicts = st.lists(st.tuples(st.integers(0, 9), kinds), max_size=3)
acts = st.one_of(
    st.tuples(st.just("add"), some_jobs, st.sampled_from([None, None, 2])),
    st.tuples(st.just("claim"), st.integers(0, 4), st.booleans(), st.sampled_from(["w1", "w2"])),
    st.tuples(st.just("settle"), verdicts, some_jobs),
    st.tuples(st.just("renew"), st.integers(0, 9)),
    st.tuples(st.just("recover"), st.integers(0, 3)),
    st.tuples(st.just("died"), st.sampled_from(["w1", "w2"]), st.booleans(), st.booleans()),
    st.tuples(st.just("prune"), st.integers(0, 5)),
    st.tuples(st.just("cancel"), st.lists(st.sampled_from(IDS), max_size=3)),
    st.tuples(st.just("revive"), st.lists(st.sampled_from(IDS), max_size=3)),
    st.tuples(
        st.just("purge"),
        st.sampled_from(QUEUES),
        st.lists(st.sampled_from(ENDABLE), max_size=3),
    ),
    st.tuples(st.just("pause"), st.sampled_from(QUEUES), st.booleans()),
    st.tuples(st.just("later"), st.sampled_from([1.0, 6.0, 20.0])),
)  # fmt: skip


def any_act(dice: random.Random) -> tuple[Any, ...]:
    """What the strategies above draw, for games of a length that they don't reach."""

    def jobs(most: int) -> list[dict[str, Any]]:
        return [
            {
                "id": dice.choice(IDS),
                "queue": dice.choice(QUEUES),
                "task": dice.choice(TASKS),
                "payload": dice.choice([b"1", b"2"]),
                "priority": dice.choice([0, 0, 5]),
                "delay": dice.choice([None, None, 5.0]),
                "ttl": dice.choice([None, None, 8.0]),
                "key": dice.choice([None, "k", "l", "m"]),
                "digest": dice.choice([b"d", b"d", b"d", b"e"]),
                "keep_key": dice.choice([0.0, 10.0]),
                "keep": dice.choice([0.0, 10.0, None]),
                "lane": dice.choice([None, "x", "y"]),
                "max_crashes": dice.choice([1, 2, None]),
            }
            for _ in range(dice.randint(0, most))
        ]

    def some(values: Sequence[Any], most: int = 3) -> list[Any]:
        return [dice.choice(values) for _ in range(dice.randint(0, most))]

    made: dict[str, tuple[int, Any]] = {
        "add": (5, lambda: (jobs(4), dice.choice([None, None, 2]))),
        "claim": (5, lambda: (dice.randint(0, 4), dice.random() < 0.3, dice.choice(WORKERS))),
        "settle": (5, lambda: ([(dice.randint(0, 9), dice.choice(KINDS)) for _ in "ab"], jobs(1))),
        "renew": (1, lambda: (dice.randint(0, 9),)),
        "recover": (1, lambda: (dice.randint(0, 3),)),
        "died": (1, lambda: (dice.choice(WORKERS), dice.random() < 0.5, dice.random() < 0.5)),
        "prune": (2, lambda: (dice.randint(0, 5),)),
        "cancel": (2, lambda: (some(IDS),)),
        "revive": (2, lambda: (some(IDS),)),
        "purge": (1, lambda: (dice.choice(QUEUES), some(ENDABLE))),
        "pause": (1, lambda: (dice.choice(QUEUES), dice.random() < 0.2)),
        "later": (3, lambda: (dice.choice([1.0, 6.0, 20.0]),)),
    }
    [name] = dice.choices(list(made), [weight for weight, _ in made.values()])
    return (name, *made[name][1]())


class Game:
    """Namespaces on one file, each with a handle, and the claims that were made.

    Each act gives what was answered, in words that don't depend on receipts.
    """

    def __init__(self, folder: Path, names: Sequence[str] = ("one", "two")) -> None:
        self.path = str(folder / "jobs.db")
        self.clock = FakeClock()
        self.stores = [
            SqliteStore(
                self.path,
                namespace=name,
                durability=Durability.PROCESS,
                clock=self.clock,
                # Which of many overdue claims are recovered first goes by their receipts.
                chance=SeededChance(number),
            )
            for number, name in enumerate(names)
        ]
        self.claims: list[list[Claim]] = [[] for _ in names]

    async def open(self) -> None:
        for store in self.stores:
            await store.open()

    async def close(self) -> None:
        for store in self.stores:
            await store.close()

    async def play(self, moves: list[Move]) -> None:
        await self.open()
        try:
            for side, act in moves:
                await self.do(side, act)
        finally:
            await self.close()

    async def do(self, side: int, act: tuple[Any, ...]) -> Any:
        name, *values = act
        try:
            return await getattr(self, name)(side, *values)
        except (KeyConflict, QueueFull, JobNotFound) as error:
            return type(error).__name__

    async def add(self, side: int, jobs: list[dict[str, Any]], capacity: int | None) -> Any:
        return await self.stores[side].add([Job(**each) for each in jobs], capacity)

    async def claim(self, side: int, limit: int, newest: bool, worker: str) -> Any:
        found = await self.stores[side].claim(QUEUES, TASKS, limit, 9, worker, newest)
        self.claims[side] += found
        return [claim.job for claim in found]

    async def settle(self, side: int, which: list[tuple[int, str]], then: Any) -> Any:
        decided = []
        for number, kind in which:
            if number < len(self.claims[side]):
                following = tuple(Job(**{**each, "key": None}) for each in then)
                decided.append(verdict(self.claims[side][number], kind, following))
        return lost(await self.stores[side].settle(decided))

    async def renew(self, side: int, number: int) -> Any:
        return lost(await self.stores[side].renew(self.claims[side][:number], 9))

    async def recover(self, side: int, limit: int) -> Any:
        return await self.stores[side].recover(limit)

    async def died(self, side: int, worker: str, alone: bool, started: bool) -> Any:
        ids = frozenset(IDS[:3]) if started else None
        return await self.stores[side].recover_worker(worker, Death(alone=alone, started=ids))

    async def prune(self, side: int, limit: int) -> Any:
        return await self.stores[side].prune(limit)

    async def cancel(self, side: int, ids: list[str]) -> Any:
        return await self.stores[side].cancel(ids)

    async def revive(self, side: int, ids: list[str]) -> Any:
        return await self.stores[side].revive(ids)

    async def purge(self, side: int, queue: str, status: list[Status]) -> Any:
        return await self.stores[side].purge(queue, status)

    async def pause(self, side: int, queue: str, paused: bool) -> Any:
        return await self.stores[side].pause(queue, paused)

    async def later(self, side: int, seconds: float) -> Any:
        self.clock.advance(seconds)


def lost(answers: Sequence[Lost]) -> list[tuple[str, str]]:
    return [(each.claim.job.id, each.reason) for each in answers]


def verdict(claim: Claim, kind: str, then: tuple[Job, ...]) -> Verdict:
    made = {
        "done": lambda: done(claim, b"1", then),
        "retry": lambda: retry(claim, 0, OOPS, then),
        "later": lambda: retry(claim, 5, OOPS, then),
        "crash": lambda: retry(claim, 0, CRASH, then),
        "back": lambda: give_back(claim, 0),
        "untouched": lambda: give_back(claim, 0, started=False),
        "dead": lambda: dead(claim, OOPS, then),
        "cancel": lambda: cancelled(claim),
    }
    return made[kind]()


def findings(path: str) -> list[str]:
    connection = schema.connect(path, Durability.PROCESS)
    try:
        return verify(connection)
    finally:
        connection.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [1, 2])
async def test_nor_is_anything_wrong_in_a_long_game(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    game = Game(tmp_path)
    await game.open()
    done: list[Move] = []
    for number in range(1500):
        done.append((dice.randrange(2), any_act(dice)))
        await game.do(*done[-1])
        for claims in game.claims:
            del claims[:-10]
        if number % 15 == 0:
            assert findings(game.path) == [], f"after {done[-15:]}"
    await game.close()
    assert findings(game.path) == []


@pytest.mark.timeout(240)
@given(st.lists(st.tuples(st.integers(0, 1), acts), min_size=5, max_size=30))
@settings(max_examples=20, suppress_health_check=list(HealthCheck))
def test_whatever_was_done_the_file_is_in_order(moves: list[Move]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="outlast-test-"))
    try:
        game = Game(folder)
        asyncio.run(game.play(moves))
        assert findings(game.path) == []
    finally:
        shutil.rmtree(folder)


async def test_a_new_line_costs_the_same_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a queue for each customer there are thousands, and others wait for the writer."""
    number, rows = 300, 0

    def counting(*args: Any) -> list[Any]:
        nonlocal rows
        found: list[Any] = rows_of(*args)
        rows += len(found)
        return found

    monkeypatch.setattr(moves, "fetch", counting)
    store = SqliteStore(str(tmp_path / "jobs.db"), durability=Durability.MEMORY)
    await store.open()
    await store.add([Job(id=f"{n}", queue=f"q{n}", task="t") for n in range(number)])
    for n in range(number):
        await store.claim([f"q{n}"], ["t"], 1, 60.0, "w")
    await store.close()
    assert rows < 10 * number
