"""Processes that live on a store until somebody kills them: they add, claim, settle, look after."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
from tests.proof.journal import Journal, Memo
from tests.proof.processes import in_child
from tests.proof.stage import QUEUE, Ending, Stage

from outlast import lifeline
from outlast.job import Job
from outlast.lifeline import Lifeline

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from tests.proof.journal import Witness

    from outlast.store import Store

__all__ = ["answered_in_child", "drained", "drained_in_child", "dumped_in_child", "live"]

BACKLOG = 200
"""Jobs that may be waiting before the adders pause: the takers have to see them all."""


async def live(
    open_store: Callable[[], Store],
    witness: Witness,
    seed: int,
    *,
    adders: int = 2,
    takers: int = 2,
    lease: float = 15.0,
) -> None:
    """One process's life. Ends only by being killed, or by an error that is a bug."""
    store = open_store()
    await store.open()
    stage = Stage(store, witness, seed=seed)
    stage.worker = stage.chance.uuid7()
    folder = store.lifelines
    if folder is not None:
        stage.lifeline = Lifeline(folder, stage.worker)
        stage.lifeline.hold()
    async with asyncio.TaskGroup() as group:
        for _ in range(adders):
            group.create_task(_add(stage))
        for _ in range(takers):
            group.create_task(_take(stage, lease))
        group.create_task(_look_after(stage, folder))


async def _add(stage: Stage) -> None:
    """Jobs one by one and in batches, some with keys, delays, lanes and priorities."""
    dice = stage.dice
    while True:
        if (await stage.store.depth(QUEUE)).ready > BACKLOG:
            await stage.store.wait([QUEUE], 0.01, space=True)
            continue
        kind = dice.random()
        if kind < 0.5:
            await stage.add([stage.job()])
        elif kind < 0.7:
            await stage.add([stage.job(priority=dice.randint(-2, 2)) for _ in range(15)])
        elif kind < 0.8:
            key = f"k{dice.randint(0, 20)}"
            await stage.add([stage.job(key=key, digest=b"same", keep_key=0.05)])
        elif kind < 0.9:
            await stage.add([stage.job(lane=f"l{dice.randint(0, 3)}")])
        else:
            await stage.add([stage.job(delay=dice.random() / 50), stage.job(size=5000)])


async def _take(stage: Stage, lease: float) -> None:
    """Claim a few and end them, mostly well."""
    dice = stage.dice
    while True:
        claims = await stage.claim(dice.randint(1, 8), lease)
        if not claims:
            await stage.store.wait([QUEUE], 0.05)
            continue
        endings: list[Ending] = ["done", "retry", "give_back", "dead", "cancelled"]
        chosen = dice.choices(endings, (80, 7, 5, 4, 4), k=len(claims))
        verdicts = []
        for claim, ending in zip(claims, chosen, strict=True):
            then = (stage.job(),) if ending == "done" and dice.random() < 0.1 else ()
            verdicts.append(stage.verdict(claim, ending, then))
        if dice.random() < 0.2:
            await stage.store.renew(claims, lease)
        await stage.settle(verdicts)


async def _look_after(stage: Stage, folder: Path | None) -> None:
    """What a worker does for its neighbours: notices the dead, and tidies up."""
    while True:
        if folder is not None:
            for worker, death in lifeline.dead(folder):
                await stage.store.recover_worker(worker, death)
                lifeline.forget(folder, worker)
        await stage.upkeep()
        await stage.store.wait([QUEUE], 0.05)
        for error in stage.errors:
            raise error


async def drained(open_store: Callable[[], Store], witness: Witness) -> dict[str, Job]:
    """After the faults: open, run dry, and return what the store holds, by id.

    The dead are found by the store itself, and by their leases: nobody helps it.
    """
    store = open_store()
    await store.open()
    try:
        stage = Stage(store, witness, worker="last")
        await stage.drain()
        return await stage.dump()
    finally:
        await store.close()


def dumped_in_child(
    open_store: Callable[[], Store], answer: Path, seconds: float = 60.0
) -> dict[str, Job]:
    """What the store holds, read in a forked child."""

    async def dumped() -> dict[str, Job]:
        store = open_store()
        await store.open()
        try:
            return await Stage(store, Memo(lambda: 0.0)).dump()
        finally:
            await store.close()

    return answered_in_child(dumped, answer, seconds)


def drained_in_child(
    open_store: Callable[[], Store], witness: Path, answer: Path, seconds: float = 60.0
) -> dict[str, Job]:
    """The same in a forked child, which leaves no connection behind in this process."""

    return answered_in_child(lambda: drained(open_store, Journal(witness)), answer, seconds)


def answered_in_child(
    ask: Callable[[], Coroutine[Any, Any, dict[str, Job]]], answer: Path, seconds: float
) -> dict[str, Job]:
    """What a coroutine finds in a forked child, handed over in a file."""
    in_child(lambda: _write(answer, asyncio.run(ask())), seconds)
    return msgspec.json.decode(answer.read_bytes(), type=dict[str, Job])


def _write(answer: Path, final: dict[str, Job]) -> None:
    answer.write_bytes(msgspec.json.encode(final))
