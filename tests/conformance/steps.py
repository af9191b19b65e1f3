"""Short words for what the tests do to a store over and over."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from outlast.job import Claim, Failure, Job, Status
from outlast.store import Ledger, Store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.job import Lost

__all__ = [
    "ENDED",
    "OOPS",
    "FullStore",
    "add",
    "claim_next",
    "get",
    "idle",
    "ids",
    "job",
    "never",
    "soon",
    "start",
    "take",
    "waiting",
]

OOPS = Failure(kind="error", message="oops", type="ValueError", traceback="Traceback ...")
ENDED = (Status.DONE, Status.DEAD, Status.CANCELLED)
FOREVER = 1e9

_numbers = itertools.count(1)


@runtime_checkable
class FullStore(Store, Ledger, Protocol):
    """A store with everything."""


def job(id: str | None = None, **fields: Any) -> Job:
    """A job; without an id, one that sorts after all that were made before."""
    return Job(id=id or f"job-{next(_numbers):06}", **fields)


async def add(store: FullStore, *jobs: Job) -> list[str]:
    """Store jobs that must be new; their ids."""
    added = await store.add(jobs)
    assert [answer.created for answer in added] == [True] * len(jobs)
    assert [answer.id for answer in added] == [each.id for each in jobs]
    return [each.id for each in jobs]


async def take(
    store: FullStore,
    limit: int = 100,
    *,
    queues: Sequence[str] = ("default",),
    tasks: Sequence[str | None] = (None,),
    lease: float = FOREVER,
    worker: str = "w1",
    newest: bool = False,
) -> list[Claim]:
    """Claim, with the queue and the task that `job` has if nothing else is said."""
    claims = list(await store.claim(queues, tasks, limit, lease, worker, newest))
    catch_up = getattr(store, "catch_up", None)
    while catch_up is not None and len(claims) < limit:
        # A broker tells by itself what there is, a moment later: here that moment is waited for.
        await catch_up(queues, tasks)
        more = await store.claim(queues, tasks, limit - len(claims), lease, worker, newest)
        claims += more
        if not more:
            break
    return claims


async def start(store: FullStore, *jobs: Job, lease: float = FOREVER, worker: str = "w1") -> Any:
    """Store jobs and claim just them, in that order; one job gives its claim, several a list."""
    await add(store, *jobs)
    claims = await take(
        store,
        len(jobs),
        queues=sorted({each.queue for each in jobs}),
        tasks=sorted({each.task for each in jobs}, key=str),
        lease=lease,
        worker=worker,
    )
    by_id = {claim.job.id: claim for claim in claims}
    assert set(by_id) == {each.id for each in jobs}
    return by_id[jobs[0].id] if len(jobs) == 1 else [by_id[each.id] for each in jobs]


async def get(store: FullStore, id: str) -> Job:
    """A job that must be stored."""
    [found] = await store.get([id])
    assert found is not None, f"{id} is not stored"
    return found


def never() -> asyncio.Future[None]:
    """What nobody ever says: it is enough."""
    return asyncio.get_running_loop().create_future()


async def claim_next(
    store: Any,
    limit: int = 10,
    *,
    timeout: float = 1e9,
    enough: asyncio.Future[None] | None = None,
    **others: Any,
) -> list[Any]:
    """``Prompt.claim_next``, with the queue and the task that `job` has."""
    how: dict[str, Any] = {"queues": ["default"], "tasks": [None], "lease": 1e9, "worker": "w"}
    how.update(others)
    found = await store.claim_next(
        *(how[name] for name in ("queues", "tasks")),
        limit, how["lease"], how["worker"], timeout, enough or never(),
    )  # fmt: skip
    return list(found)


def ids(claims: Sequence[Claim | Lost | Job]) -> list[str]:
    found = []
    for each in claims:
        if isinstance(each, Job):
            found.append(each.id)
        elif isinstance(each, Claim):
            found.append(each.job.id)
        else:
            found.append(each.claim.job.id)
    return found


async def waiting(awaitable: Any) -> asyncio.Task[Any]:
    """Begin something that must wait, and see that it does."""
    task: asyncio.Task[Any] = asyncio.ensure_future(awaitable)
    done, _ = await asyncio.wait((task,), timeout=0.05)
    assert not done, "it should have waited"
    return task


async def idle(
    store: FullStore,
    *,
    queues: Sequence[str] = ("default",),
    tasks: Sequence[str | None] = (None,),
    space: bool = False,
    timeout: float = FOREVER,
) -> asyncio.Task[None]:
    """A wait like that of a worker with nothing to do: it looks, and waits when there is no news.

    It may find news a few times, since early returns are allowed; it may not go on like that.
    """
    for _ in range(5):
        assert await take(store, queues=queues, tasks=tasks) == []
        task = asyncio.ensure_future(store.wait(queues, timeout, space=space))
        done, _ = await asyncio.wait((task,), timeout=0.05)
        if not done:
            return task
        task.result()
    raise AssertionError("there is nothing to claim, but wait returns again and again")


async def soon(task: asyncio.Task[Any]) -> Any:
    """The result of something that has every reason to be done now."""
    async with asyncio.timeout(60):
        return await task
