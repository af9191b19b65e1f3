"""A worker of ours killed at each step of a message's way: nothing lost, no next step doubled."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group, signature
from tests.contrib.beside.pair import shapes
from tests.contrib.beside.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.contrib.beside.pair import Producer
    from tests.servers import RedisServer

pytestmark = pytest.mark.needs("redis")

STEPS = [
    "before _store", "after _store", "after settle", "in the run", "before store", "after store",
    "before send", "after send", "after part", "before finish", "after finish",
]  # fmt: skip


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, server: RedisServer) -> Iterator[Workers]:
    """One worker of Celery's for all: nobody kills it."""
    workers = Workers(tmp_path_factory.mktemp("theirs"), server.url())
    workers.celery()
    yield workers
    workers.close()


@pytest.fixture
def ours(tmp_path: Path, redis: RedisServer) -> Iterator[Workers]:
    workers = Workers(tmp_path, redis.url())
    yield workers
    workers.close()


def s(name: str, *args: Any) -> Any:
    made = signature(name, args=args, app=shapes)
    return made.set(queue="ours") if name.startswith("ours.") else made


@pytest.mark.parametrize("step", STEPS)
def test_killed_once(step: str, theirs: Workers, ours: Workers, producer: Producer) -> None:
    """A chain and a chord, in which our tasks and Celery's take turns."""
    theirs.log.unlink(missing_ok=True)
    there = chain(s("ours.add", 1, 2), s("theirs.double"), s("ours.add", 10), s("theirs.note"))
    back = chord([s("ours.add", 20, 1), s("theirs.double", 4)], s("theirs.total"))
    sent = [producer.ask(apply=work) for work in (there, back)]
    ours.ours(DIE=step)
    assert [producer.get(id_) for id_ in sent] == [16, 29]
    assert (ours.folder / "died").exists(), "it was not killed"
    # What Celery's worker was sent, it was sent once.
    assert sorted(theirs.said("double")) == [3, 4]
    assert theirs.said("note") == [16]
    assert theirs.said("total") == [[21, 8]]
    # Of ours, what was under way when the worker was killed runs a second time.
    ran = Counter(map(tuple, ours.said("add")))
    assert ran.keys() == {(1, 2), (6, 10), (20, 1)}
    assert max(ran.values()) <= 2
    if step == "in the run":
        assert max(ran.values()) == 2


def test_groups_within_groups_whoever_counts(
    theirs: Workers, ours: Workers, producer: Producer
) -> None:
    """A chord that our worker begins, and of which Celery's may meet the last part."""
    inner = chain(s("theirs.double"), group(s("ours.add", 10), s("theirs.double")))
    work = chain(s("ours.add", 1, 2), group(inner, s("theirs.double")), s("theirs.give"))
    ours.ours()
    ids = [producer.ask(apply=work) for _ in range(5)]
    assert [producer.get(id_) for id_ in ids] == [[[[[16, 12], 6]], {}]] * 5
