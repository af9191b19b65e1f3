"""`outlast migrate`: tables brought up to date, or said not to be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from tests.servers import PostgresServer, shared

from outlast.store import Durability
from outlast.stores.postgres import schema as tables
from outlast.stores.sqlite import schema

if TYPE_CHECKING:
    from tests.cli.conftest import Shop


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.needs("servers"))])
def url(request: pytest.FixtureRequest, shop: Shop) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{shop.folder}/old.db"
    return shared(PostgresServer).url(schema=f"cli_{shop.folder.name[-20:]}".replace("-", "_"))


def test_an_old_store_is_brought_up_to_date(
    shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = schema if url.startswith("sqlite") else tables
    steps = of.MIGRATIONS
    missing = shop.run("migrate", "--check", "--url", url)
    assert missing.exit_code == 4
    assert "--create makes one" in missing.stderr
    if of is schema:
        path = url.removeprefix("sqlite:///")
        Path(path).touch(0o600)
        connection = schema.connect(path, Durability.PROCESS)
        schema.migrate(connection, path, "mine", steps[:1])
        connection.close()
    else:
        with monkeypatch.context() as before:
            before.setattr(of, "MIGRATIONS", steps[:1])
            before.setattr("outlast.stores.postgres.store.MIGRATIONS", steps[:1])
            assert "Schema 0 is 1 now" in shop.ok("migrate", "--create", "--url", url)
    for _ in range(2):
        old = shop.run("migrate", "--check", "--url", url)
        assert old.exit_code == 1
        assert f"Schema 1; this outlast makes {len(steps)}" in old.stdout
    assert f"Schema 1 is {len(steps)} now" in shop.ok("migrate", "--url", url)
    assert "up to date" in shop.ok("migrate", "--check", "--url", url)
    assert "up to date" in shop.ok("migrate", "--url", url)


@pytest.mark.needs("servers")
def test_tables_that_somebody_keeps_from_being_changed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = shared(PostgresServer)
    name = f"kept_{shop.folder.name[-20:]}".replace("-", "_")
    url = server.url(schema=name)
    with monkeypatch.context() as before:
        before.setattr("outlast.stores.postgres.store.MIGRATIONS", tables.MIGRATIONS[:-1])
        before.setattr(tables, "MIGRATIONS", tables.MIGRATIONS[:-1])
        shop.ok("migrate", "--create", "--url", url)
    with psycopg.connect(server.url()) as somebody:
        somebody.execute(f'LOCK TABLE "{name}".jobs IN SHARE UPDATE EXCLUSIVE MODE')
        kept = shop.run("migrate", "--url", url)
    assert kept.exit_code == 1
    assert "could not be changed" in kept.stdout
    assert "up to date" not in shop.ok("migrate", "--url", url)
    assert "up to date" in shop.ok("migrate", "--url", url)


def test_a_newer_store_is_refused(shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of = schema if url.startswith("sqlite") else tables
    shop.ok("migrate", "--create", "--url", url)
    if of is tables:
        monkeypatch.setattr(of, "SERVES", 1)
        monkeypatch.setattr("outlast.stores.postgres.store.MIGRATIONS", of.MIGRATIONS[:1])
        assert "up to date" in shop.ok("migrate", "--check", "--url", url)  # it says it serves us
        return
    monkeypatch.setattr(of, "MIGRATIONS", of.MIGRATIONS[:1])
    newer = shop.run("migrate", "--check", "--url", url)
    assert newer.exit_code == 4
    assert "made by a newer outlast" in newer.stderr


def test_a_store_without_tables(shop: Shop) -> None:
    assert "nothing to bring up to date" in shop.ok("migrate", "--url", "memory://x")
