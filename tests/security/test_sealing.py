"""Signed and sealed jobs: what someone who can write to the store can do, which is nothing."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from outlast import ConfigurationError, JobFailed, Keys, Outlast
from outlast.access import ledger_of
from outlast.job import Job
from outlast.stores import connect

if TYPE_CHECKING:
    from pathlib import Path

OLD, NEW = os.urandom(32), os.urandom(32)
SIGNED = Keys(current="old", secrets={"old": OLD})
SEALING = Keys(current="old", secrets={"old": OLD}, seal=True)
ran: list[str] = []


def program(path: Path, keys: Keys | None, **options: Any) -> Outlast:
    app = Outlast(f"sqlite:///{path}", keys=keys, **options)

    @app.task(name="pay")
    async def pay(card: str) -> str:
        ran.append(card)
        return f"paid with {card}"

    @app.task(name="refund")
    async def refund(card: str) -> None:
        ran.append(f"refund {card}")

    return app


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "it.db"


@pytest.fixture(params=[SIGNED, SEALING], ids=["signed", "sealed"])
def keys(request: pytest.FixtureRequest) -> Keys:
    return request.param  # type: ignore[no-any-return]


async def stored(app: Outlast, card: str = "4242") -> str:
    async with app:
        return (await app.tasks["pay"].enqueue(card)).id


def forge(db: Path, sql: str, *values: object) -> None:
    """What an attacker does who can write to the file."""
    connection = apsw.Connection(str(db))
    connection.set_busy_timeout(5000)
    connection.execute(sql, values)
    assert connection.changes()
    connection.close()


async def outcome(app: Outlast, id: str) -> Any:
    async with app, app.worker():
        return await app.handle(id).result(timeout=60)


async def test_a_round_trip(db: Path, keys: Keys) -> None:
    id = await stored(program(db, keys))
    assert await outcome(program(db, keys), id) == "paid with 4242"
    assert ran == ["4242"]


async def test_what_lies_in_the_file(db: Path, keys: Keys) -> None:
    id = await stored(program(db, keys), "4242-4242")
    assert await outcome(program(db, keys), id) == "paid with 4242-4242"
    everything = db.read_bytes()
    assert (b"4242-4242" in everything) is not keys.seal
    assert OLD not in everything


async def untrusted(db: Path, keys: Keys, id: str, words: str) -> None:
    with pytest.raises(JobFailed, match=words) as caught:
        await outcome(program(db, keys), id)
    assert caught.value.failure is not None
    assert caught.value.failure.kind == "untrusted"
    assert not ran


async def test_moved_to_another_task(db: Path, keys: Keys) -> None:
    """Read whole by the store's own checks: only the signature can tell."""
    app = program(db, keys)
    async with app:
        store = connect(f"sqlite:///{db}")
        await store.open()
        (claim,) = [(await app.tasks["pay"].enqueue("4242")).id]
        (original,) = await store.get([claim])  # type: ignore[attr-defined]
        moved = Job(
            id="moved",
            task="refund",
            payload=original.payload,
            codec=original.codec,
            headers=original.headers,
        )
        again = Job(
            id="again",
            task="pay",
            payload=original.payload,
            codec=original.codec,
            headers=original.headers,
        )
        await store.purge("default", ["queued"])  # type: ignore[attr-defined]
        await store.add([moved, again])
        await store.close()
    await untrusted(db, keys, "moved", "does not fit|seal is broken")
    await untrusted(db, keys, "again", "does not fit|seal is broken")


async def test_a_payload_of_ones_own(db: Path, keys: Keys) -> None:
    id = await stored(program(db, keys))
    store = connect(f"sqlite:///{db}")
    await store.open()
    (job,) = await store.get([id])  # type: ignore[attr-defined]
    await store.purge("default", ["queued"])  # type: ignore[attr-defined]
    forged = Job(
        id=id,
        task="pay",
        payload=b'{"card":"6666"}' + bytes(40),
        codec=job.codec,
        headers=job.headers,
    )
    await store.add([forged])
    await store.close()
    await untrusted(db, keys, id, "does not fit|seal is broken")


async def test_no_signature(db: Path, keys: Keys) -> None:
    id = await stored(program(db, None))
    await untrusted(db, keys, id, "no signature")


async def test_no_signature_while_producers_get_their_keys(db: Path) -> None:
    id = await stored(program(db, None))
    lenient = Keys(current="old", secrets={"old": OLD}, require=False)
    assert await outcome(program(db, lenient), id) == "paid with 4242"


async def test_an_unknown_key(db: Path, keys: Keys) -> None:
    other = Keys(current="new", secrets={"new": NEW}, seal=keys.seal)
    id = await stored(program(db, other))
    await untrusted(db, keys, id, "'new', which is not known")


async def test_rotation(db: Path, keys: Keys) -> None:
    before = await stored(program(db, keys))
    both = Keys(current="new", secrets={"old": OLD, "new": NEW}, seal=keys.seal)
    after = await stored(program(db, both))
    assert await outcome(program(db, both), before) == "paid with 4242"
    assert await outcome(program(db, both), after) == "paid with 4242"


async def test_another_namespace(db: Path, keys: Keys) -> None:
    id = await stored(program(db, keys, namespace="one"))
    forge(db, "UPDATE spaces SET name = 'two' WHERE name = 'one'")
    with pytest.raises(JobFailed, match=r"does not fit|seal is broken"):
        await outcome(program(db, keys, namespace="two"), id)
    assert not ran


async def test_repeating_an_add_is_safe(db: Path, keys: Keys) -> None:
    app = program(db, keys)
    async with app:
        call = app.tasks["pay"].call("4242")
        (first,) = await app.enqueue_many([call])
        (second,) = await app.enqueue_many([call])
        assert (first.created, second.created) == (True, False)


async def test_keys_of_calls_and_what_follows(db: Path, keys: Keys) -> None:
    app = program(db, keys)
    async with app:
        first = await app.tasks["pay"].using(key="k").enqueue("4242")
        again = await app.tasks["pay"].using(key="k").enqueue("4242")
        assert again.id == first.id


async def test_people_see_what_was_meant(db: Path, keys: Keys) -> None:
    app = program(db, keys)
    async with app:
        id = (await app.tasks["pay"].enqueue("4242")).id
        (job,) = await ledger_of(app.store).get([id])
        assert job is not None
        assert (job.payload, job.codec, dict(job.headers)) == (b'{"card":"4242"}', "json", {})
        (found,) = await ledger_of(app.store).find()
        assert found == job


def test_keys_that_make_no_sense() -> None:
    with pytest.raises(ConfigurationError, match="'b' is not among: a"):
        Keys(current="b", secrets={"a": OLD})
    with pytest.raises(ConfigurationError, match="3 bytes"):
        Keys(current="a", secrets={"a": b"abc"})
    with pytest.raises(ConfigurationError, match="colon"):
        Keys(current="a:b", secrets={"a:b": OLD})
    assert str(OLD) not in repr(SIGNED)


def test_keys_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    text = base64.b64encode(OLD).decode()
    path.write_text(f"# ours\nold {text}\nnew {base64.b64encode(NEW).decode()}\n")
    path.chmod(0o600)
    keys = Keys.read(path, seal=True)
    assert (keys.current, dict(keys.secrets), keys.seal) == ("new", {"old": OLD, "new": NEW}, True)
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="others can read"):
        Keys.read(path)
    path.chmod(0o600)
    path.write_text(f"old {text[:-3]}!!\n")
    with pytest.raises(ConfigurationError) as caught:
        Keys.read(path)
    assert text[:20] not in str(caught.value)
