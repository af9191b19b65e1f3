"""Faults of the machine, each named by its row in the catalogue."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import apsw
import pytest
from tests.proof.faults import flip_bits, in_process, memo
from tests.proof.oom import starve
from tests.proof.processes import fork, in_child
from tests.proof.recovery import enqueue_slow
from tests.proof.stage import QUEUE, Stage
from tests.proof.stores import sqlite_store

from outlast.job import Status

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.needs("cut")
@pytest.mark.timeout(240)
def test_s4_on_a_full_disk_new_work_is_refused_and_all_that_was_accepted_is_settled() -> None:
    seen = in_process("full-disk", tmpfs="48m")
    assert seen.broken == {}, seen.story
    assert seen.notes["refused early"]
    assert seen.notes["adds while full"] == 0
    assert seen.notes["ended while full"] == seen.acknowledged - 1
    assert seen.notes["errors while settling"] == 0
    assert seen.notes["adds after"]
    assert seen.errors == ["StoreFull"]


@pytest.mark.timeout(240)
def test_s4_a_limit_on_the_size_of_files_costs_nothing_that_was_accepted() -> None:
    seen = in_process("file-limit")
    assert seen.broken == {}, seen.story
    assert seen.notes["errors"] > 0
    assert seen.notes["adds after"]


@pytest.mark.timeout(240)
def test_m1_without_file_descriptors_opening_is_refused_and_works_later() -> None:
    seen = in_process("few-descriptors")
    assert seen.broken == {}
    assert seen.notes["refusals"] > 0


@pytest.mark.timeout(240)
def test_s6_a_flipped_bit_is_noticed_and_the_rest_goes_on(tmp_path: Path) -> None:
    seen = flip_bits(tmp_path, flips=120, seed=1)
    assert seen.notes.get("wrong payload", 0) == 0
    buried = seen.notes["job buried"]
    assert buried > 20, "one job is buried, the other 149 have run"
    assert seen.notes.get("unnoticed", 0) <= 3


@pytest.mark.parametrize("column", ["payload", "opts", "key", "lane", "id"])
async def test_s6_text_that_is_none_any_more_holds_nobody_up(column: str, tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "proof.db")
    await store.open()
    stage = Stage(store, memo())
    hurt = stage.job(key="k", lane="l")
    await stage.add([hurt])
    others = await stage.add([stage.job() for _ in range(5)])
    connection = apsw.Connection(str(tmp_path / "proof.db"))
    kind = "BLOB" if column == "payload" else "TEXT"
    text = f"UPDATE jobs SET {column} = CAST(x'22b022' AS {kind}) WHERE id = ?"
    connection.execute(text, (hurt.id,))
    connection.close()
    claims = await store.claim([QUEUE], [QUEUE], 10, 15.0, "w")
    assert {claim.job.id for claim in claims} >= set(others)
    depth = await store.depth(QUEUE)
    # What is run by it can't be damaged unnoticed; where it belongs to may be.
    buried = column in ("payload", "opts", "id")
    assert (depth.running, depth.dead) == ((5, 1) if buried else (6, 0))
    assert await store.claim([QUEUE], [QUEUE], 10, 15.0, "w") == []
    await store.close()


@pytest.mark.needs("cut")
@pytest.mark.timeout(240)
def test_w4_a_job_that_eats_all_memory_is_buried_and_its_neighbours_end() -> None:
    found = starve()
    if found is None:
        pytest.skip("needs cut: this kernel has no memory cgroups of version 1 to limit")
    assert found.hog is Status.DEAD
    assert found.failure == "crash"
    assert found.neighbours == {"done": 10}
    assert found.deaths == 2


@pytest.mark.timeout(240)
def test_a_job_added_by_a_process_that_ends_at_once_wakes_an_idle_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bell has to ring before the process that rang it may go."""
    witness = tmp_path / "witness"
    witness.mkdir()
    monkeypatch.setenv("PROOF_WITNESS", str(witness))
    monkeypatch.setenv("OUTLAST_URL", f"sqlite:///{tmp_path / 'proof.db'}")

    async def listen(heard: int) -> None:
        store = sqlite_store(tmp_path / "proof.db")
        await store.open()
        while not await store.claim(["tolls"], [TASK], 1, 15.0, "w"):
            os.write(heard, b"asleep\n")
            await asyncio.wait_for(store.wait(["tolls"], 3600.0), 60)
        os.write(heard, b"awake\n")
        os._exit(0)

    for _ in range(12):
        reading, writing = os.pipe()
        child = fork(lambda end=writing: asyncio.run(listen(end)))  # type: ignore[misc]
        os.close(writing)
        with open(reading, encoding="ascii") as lines:
            assert lines.readline() == "asleep\n"
            in_child(lambda: enqueue_slow(0.0), 60.0)
            heard = lines.read().split()
        assert child.wait(60) == 0
        assert heard[-1] == "awake"


TASK = "tests.proof.tolls.slow"


@pytest.mark.timeout(240)
def test_processes_that_open_one_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    for number in range(25):
        path = tmp_path / f"{number}.db"

        def open_and_close(path: Path = path) -> None:
            store = sqlite_store(path)
            store.open_now()
            store.close_now()

        children = [fork(open_and_close) for _ in range(4)]
        assert [child.wait(60) for child in children] == [0, 0, 0, 0]
