"""Bits that flip on the disk: the job is buried with its bytes kept, and all others go on."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.conformance.steps import job

from outlast.errors import OutlastError, StoreDamaged
from outlast.job import Claim, Death, Job, Status, done
from outlast.store import Durability
from outlast.stores.sqlite import schema
from outlast.stores.sqlite.store import SqliteStore
from outlast.stores.sqlite.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores.conftest import Opener

GOOD = [f"good-{n}" for n in range(4)]
FLIPS: dict[str, str] = {
    "payload, still JSON": "payload = CAST('\"X\"' AS BLOB)",
    "payload, no JSON": "payload = x'22'",
    "payload, no text": "payload = x'22ff22'",
    "payload, NUL": "payload = x'220022'",
    "payload, empty": "payload = x''",
    "id": "id = 'bae'",
    "id, no text": "id = CAST(x'62ff64' AS TEXT)",
    "options, no JSON": "opts = '{\"timeout\":3'",
    "options, no object": "opts = '[1]'",
    "options, a number": "opts = '7'",
    "options, unknown name": "opts = '{\"timeouu\":30.0}'",
    "options, other number": "opts = '{\"timeout\":31.0}'",
    "options, wrong type": 'opts = \'{"timeout":"x"}\'',
    "options, no text": "opts = CAST(x'7bff7d' AS TEXT)",
    "options, none": "opts = NULL",
    "checksum": "crc = crc + 1",
    "checksum of the options": "crc = crc + 4294967296",
    "line": "line = (SELECT id FROM lines WHERE task = 'other')",
    "failure, no JSON": "failure = '{'",
    "failure, no text": "failure = CAST(x'ff' AS TEXT)",
    "progress, no JSON": "progress = '{'",
    "lane, no text": "lane = CAST(x'ff' AS TEXT)",
    "key, no text": "key = CAST(x'ff' AS TEXT)",
}


def flip(db: Path, change: str, id: str = "bad") -> None:
    connection = apsw.Connection(str(db))
    connection.execute(f"UPDATE jobs SET {change} WHERE id = ?", (id,))
    assert connection.changes() == 1
    connection.close()


def raw(db: Path, column: str, where: str = "seq = 3") -> Any:
    connection = apsw.Connection(str(db))
    found = connection.execute(f"SELECT {column} FROM jobs WHERE {where}").get
    connection.close()
    return found


def filled(opened: Opener, db: Path, **fields: Any) -> SqliteStore:
    """Four good jobs, and in their middle the one to be damaged, with everything a job may have."""
    store = opened(db)
    bad = Job(id="bad", task="t", payload=b'"x"', timeout=30.0, max_crashes=5, **fields)
    store.add_now([job(GOOD[0], task="t"), job(GOOD[1], task="t"), bad])
    store.add_now([job(GOOD[2], task="t"), job(GOOD[3], task="t"), job("far", task="other")])
    return store


def complaints(db: Path) -> list[str]:
    connection = schema.connect(str(db), Durability.POWER)
    try:
        return verify(connection)
    finally:
        connection.close()


@pytest.mark.parametrize("change", FLIPS.values(), ids=FLIPS.keys())
@pytest.mark.parametrize("alone", [False, True], ids=["among others", "alone"])
@pytest.mark.parametrize("newest", [False, True], ids=["oldest first", "newest first"])
async def test_a_damaged_job_is_buried_and_all_others_run(
    db: Path, opened: Opener, change: str, alone: bool, newest: bool
) -> None:
    store = filled(opened, db)
    flip(db, change)
    before = raw(db, "payload, CAST(id AS BLOB), CAST(opts AS BLOB)")
    claims: list[Claim] = []
    limit = 1 if alone else 10
    while found := await store.claim(["default"], ["t", "other"], limit, 60, "w", newest):
        claims += found
    if change.startswith(("lane", "key")):
        # What it is to do, and as which task, is as it was added: it may run.
        assert sorted(claim.job.id for claim in claims) == sorted([*GOOD, "bad", "far"])
        return
    assert sorted(claim.job.id for claim in claims) == sorted([*GOOD, "far"])
    if change.startswith("line") and newest and alone:
        # Another job of its new line went under its count, and so it isn't seen yet.
        await store.prune(10)
        assert await store.claim(["default"], ["t", "other"], limit, 60, "w", newest) == []
    assert raw(db, "state") == schema.DEAD
    assert raw(db, "payload, CAST(id AS BLOB), CAST(opts AS BLOB)") == before, "kept as they are"
    assert await store.settle([done(claim) for claim in claims]) == []
    [dead] = await store.find(status=[Status.DEAD])
    assert dead.failure is not None
    assert dead.failure.kind == "damaged"
    lines = await store.lines()
    assert sum(line.depth.dead for line in lines) == 1
    assert sum(line.depth.done for line in lines) == 5
    # A job that has changed its line is missing where it was counted.
    assert len(complaints(db)) <= (3 if change.startswith("line") else 1)
    await store.add([job("after", task="t")])
    assert len(await store.claim(["default"], ["t"], 10, 60, "w")) == 1


@pytest.mark.parametrize("change", FLIPS.values(), ids=FLIPS.keys())
async def test_nothing_else_stumbles_over_a_damaged_job(
    db: Path, opened: Opener, tmp_path: Path, change: str
) -> None:
    """Each call does its work on the good ones; on the bad one it does something, or says so."""
    store = filled(opened, db, key="k", digest=b"d", lane="l", ttl=1000.0)
    flip(db, change)

    async def tolerant(call: Any) -> None:
        with contextlib.suppress(StoreDamaged):
            await call

    assert (await store.get(GOOD[:1]))[0] is not None
    await tolerant(store.get(["bad"]))
    listed = await store.find(limit=100)
    assert {each.id for each in listed} >= {*GOOD, "far"}
    assert sum(line.depth.live for line in await store.lines()) == 6
    assert (await store.cancel(GOOD[:1])) == ["cancelled"]
    await tolerant(store.cancel(["bad"]))
    await tolerant(store.revive(["bad"]))
    assert await store.revive(GOOD[:1]) == [True]
    assert await store.backup(tmp_path / "copy.db")
    assert await store.prune(100) == 0
    assert await store.purge("default", [Status.DEAD, Status.QUEUED, Status.CANCELLED]) >= 5


@pytest.mark.parametrize("change", FLIPS.values(), ids=FLIPS.keys())
async def test_a_job_damaged_while_it_ran(db: Path, opened: Opener, change: str) -> None:
    """It can be settled by its receipt, or comes back with its worker's death and is buried."""
    store = filled(opened, db, key="k", digest=b"d")
    claims = await store.claim(["default"], ["t"], 10, 60, "w")
    assert len(claims) == 5
    flip(db, change)
    good = [claim for claim in claims if claim.job.id in GOOD]
    assert await store.settle([done(claim) for claim in good]) == []
    assert await store.renew(claims, 60)
    assert await store.recover_worker("w", Death(started=frozenset(), message="killed")) == 1
    ran = [c.job.id for c in await store.claim(["default"], ["t", "other"], 10, 60, "w")]
    assert ran == ["far"] or not change.startswith(("payload", "id", "opt", "crc", "line"))


@pytest.mark.parametrize("change", FLIPS.values(), ids=FLIPS.keys())
async def test_a_damaged_job_that_expires(db: Path, opened: Opener, change: str) -> None:
    """Expiry comes by in every claim: it must not stop there for ever."""
    store = filled(opened, db, ttl=0.001, key="k", digest=b"d", lane="l")
    flip(db, change)
    await asyncio.to_thread(lambda: None)
    claims = list(await store.claim(["default"], ["t", "other"], 10, 60, "w"))
    if change.startswith("line"):
        await store.prune(10)  # which counts lines anew that seem to be empty and aren't
        claims += await store.claim(["default"], ["t", "other"], 10, 60, "w")
    assert sorted(claim.job.id for claim in claims) == sorted([*GOOD, "far"])
    assert raw(db, "state") in (schema.CANCELLED, schema.DEAD)


def test_a_bit_in_the_file_itself(db: Path, tmp_path: Path) -> None:
    """Wherever it flips: no job runs with other contents than it was added with."""
    jobs = {f"job-{n:03}": f'"{n:03} {"abcdefgh" * 8}"'.encode() for n in range(60)}
    store = SqliteStore(str(db), durability=Durability.PROCESS)
    store.open_now()
    store.add_now([job(id, task=f"t{n % 3}", payload=p) for n, (id, p) in enumerate(jobs.items())])
    store.close_now()
    content = db.read_bytes()
    dice = random.Random(7)
    noticed = 0
    for number in range(120):
        copy = tmp_path / f"copy{number}.db"
        at = dice.randrange(100, len(content))
        flipped = bytearray(content)
        flipped[at] ^= 1 << dice.randrange(8)
        copy.write_bytes(flipped)
        noticed += drain(copy, jobs)
    assert noticed >= 5, "some of them must have hit a job"


def drain(path: Path, jobs: dict[str, bytes]) -> bool:
    """Claim all there is; whether something was found to be wrong."""
    store = SqliteStore(str(path), durability=Durability.PROCESS)
    ran: dict[str, bytes] = {}
    noticed = False
    try:
        store.open_now()
        for _ in range(100):
            claims = store.claim_now(["default"], ["t0", "t1", "t2"], 7, 600, "w")
            if not claims:
                break
            for claim in claims:
                ran[claim.job.id] = claim.job.payload
                assert claim.job.task == f"t{int(claim.job.id[4:]) % 3}"
            store.settle_now([done(claim) for claim in claims])
    except OutlastError:
        noticed = True
    finally:
        store.close_now()
    assert {id: jobs.get(id) for id in ran} == ran
    return noticed or len(ran) < len(jobs)


def test_flips_in_payloads_cost_one_job_each(db: Path, tmp_path: Path, opened: Opener) -> None:
    wanted = [f"job-{n}" for n in range(50)]
    store = SqliteStore(str(db), durability=Durability.PROCESS)
    store.open_now()
    store.add_now([job(id, payload=f'"payload of {id}!"'.encode()) for id in wanted])
    store.close_now()
    content = db.read_bytes()
    dice = random.Random(3)
    for number in range(25):
        victim = dice.choice(wanted)
        text = f"payload of {victim}!".encode()
        at = content.index(text) + dice.randrange(len(text))
        flipped = bytearray(content)
        flipped[at] ^= 1 << dice.randrange(8)
        copy = tmp_path / f"copy{number}.db"
        copy.write_bytes(flipped)
        copy.chmod(0o600)
        store = opened(copy, durability=Durability.PROCESS)
        ran = {claim.job.id for claim in store.claim_now(["default"], [None], 100, 600, "w")}
        assert ran == set(wanted) - {victim}
        assert store.depth_now("default").dead == 1
        store.close_now()


async def test_payloads_of_any_bytes_are_no_damage(db: Path, opened: Opener) -> None:
    """Stores take bytes: whatever they are, they come back."""
    dice = random.Random(1)
    payloads = [
        b"", b"\0", b"\xff", b'"\0"', b"\xed\xa0\x80", b"\xc0\x80", b'"\\u0000"', b"{", b"]]",
        *(dice.randbytes(dice.randrange(40)) for _ in range(60)),
    ]  # fmt: skip
    store = opened(db)
    for codec in ("json", "other"):
        for n, payload in enumerate(payloads):
            await store.add([job(f"{codec}-{n:03}", payload=payload, codec=codec)])
        claims = await store.claim(["default"], [None], 1000, 60, "w")
        assert [claim.job.payload for claim in claims] == payloads
        assert {claim.job.codec for claim in claims} == {codec}
        assert await store.settle([done(claim, b"\xff\0") for claim in claims]) == []
    [found] = await store.get(["json-002"])
    assert found is not None
    assert (found.payload, found.result) == (b"\xff", b"\xff\0")
    assert complaints(db) == []


def page_of(db: Path, name: str) -> int:
    """Where in the file the root page of a table or an index begins."""
    connection = apsw.Connection(str(db))
    page = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).get
    connection.close()
    return (int(page) - 1) * 4096


def forty_jobs(db: Path) -> set[str]:
    store = SqliteStore(str(db), durability=Durability.PROCESS)
    store.open_now()
    jobs = [job(f"job-{n:02}", payload=f'"{n}"'.encode()) for n in range(40)]
    store.add_now(jobs)
    store.close_now()
    return {each.id for each in jobs}


def work_through(db: Path) -> set[str]:
    """Claim and settle all there is."""
    store = SqliteStore(str(db), durability=Durability.PROCESS)
    store.open_now()
    ran: set[str] = set()
    try:
        while claims := store.claim_now(["default"], [None], 7, 600, "w"):
            ran |= {claim.job.id for claim in claims}
            assert store.settle_now([done(claim) for claim in claims]) == []
    finally:
        store.close_now()
    return ran


def test_an_index_that_disagrees_with_its_table_is_rebuilt(
    db: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = forty_jobs(db)
    content, page = db.read_bytes(), page_of(db, "jobs_ready")
    dice = random.Random(5)
    whole = rebuilt = stopped = 0
    for number in range(40):
        copy = tmp_path / f"copy{number}.db"
        flipped = bytearray(content)
        # The cells, which fill the page from its end.
        flipped[page + 4096 - dice.randrange(1, 500)] ^= 1 << dice.randrange(8)
        copy.write_bytes(flipped)
        copy.chmod(0o600)
        caplog.clear()
        try:
            ran = work_through(copy)
        except StoreDamaged:
            stopped += 1
            continue
        mended = "It was rebuilt, and nothing was lost" in caplog.text
        assert len(wanted - ran) <= (0 if mended else 1)
        if mended:
            assert complaints(copy) == []
        rebuilt += mended
        whole += ran == wanted
    assert rebuilt >= 15
    assert whole >= 30
    assert stopped <= 5


def test_damage_that_is_more_than_an_index_is_said_and_made_no_worse(db: Path) -> None:
    wanted = forty_jobs(db)
    content, page = db.read_bytes(), page_of(db, "jobs")
    flipped = bytearray(content)
    flipped[page] ^= 0x80
    db.write_bytes(flipped)
    for _ in range(2):
        with pytest.raises(StoreDamaged, match="rebuilding its indexes does not help") as caught:
            work_through(db)
        for what in (str(db), "Nothing was changed", "restore a backup", "outlast doctor --deep"):
            assert what in str(caught.value)
    # The bit flips back: all of it is still there.
    healed = bytearray(db.read_bytes())
    healed[page] ^= 0x80
    db.write_bytes(healed)
    assert work_through(db) == wanted
    assert complaints(db) == []


@pytest.mark.parametrize("change", ["DELETE FROM meta", "UPDATE meta SET value = 'q'"])
async def test_without_its_epoch_nothing_is_claimed_and_nothing_lost(db: Path, change: str) -> None:
    """A fence that falls would let an outside service take an old run for the newer one."""
    store = SqliteStore(str(db))
    await store.open()
    await store.add([job("a"), job("b")])
    other = apsw.Connection(str(db))
    other.execute(f"{change} WHERE name = 'epoch'")
    assert verify(other) == ["epoch: is gone from the table meta: no job can be claimed without it"]
    with pytest.raises(StoreDamaged, match="epoch of the fences is gone"):
        await store.claim(["default"], [None], 10, 60.0, "w")
    await store.add([job("c")])
    other.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', '5')")
    other.close()
    claims = await store.claim(["default"], [None], 10, 60.0, "w")
    assert sorted(claim.job.id for claim in claims) == ["a", "b", "c"]
    await store.close()


@pytest.mark.skipif(not schema.boot_id(), reason="this system does not say when it was started")
async def test_a_store_whose_note_of_the_machine_s_start_is_no_text_is_called_damaged(
    db: Path,
) -> None:
    store = SqliteStore(str(db))
    await store.open()
    await store.close()
    other = apsw.Connection(str(db))
    other.execute("UPDATE meta SET value = CAST(x'61e262' AS TEXT) WHERE name = 'boot'")
    assert other.changes() == 1
    other.close()
    with pytest.raises(StoreDamaged, match=r"can't be read.*outlast doctor"):
        await SqliteStore(str(db)).open()
