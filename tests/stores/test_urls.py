"""Store URLs: what they mean, what is refused, and that no secret is ever shown."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import ConfigurationError, DurabilityError
from outlast.store import Durability
from outlast.stores import connect, redact
from outlast.stores.urls import Address, parse

READ = {
    "memory://": Address(scheme="memory", path=""),
    "memory://jobs": Address(scheme="memory", path="jobs"),
    "memory://jobs/": Address(scheme="memory", path="jobs"),
    "MEMORY://jobs": Address(scheme="memory", path="jobs"),
    "sqlite:///jobs.db": Address(scheme="sqlite", path="jobs.db"),
    "sqlite:///a/b.db": Address(scheme="sqlite", path="a/b.db"),
    "sqlite:////srv/jobs.db": Address(scheme="sqlite", path="/srv/jobs.db"),
    "sqlite:////srv/a%20b%3F%23.db": Address(scheme="sqlite", path="/srv/a b?#.db"),
    "sqlite:////home/me@corp/a:b.db": Address(scheme="sqlite", path="/home/me@corp/a:b.db"),
    "sqlite:///ü.db": Address(scheme="sqlite", path="ü.db"),
    "sqlite:///C:/jobs.db": Address(scheme="sqlite", path="C:/jobs.db"),
    "sqlite:///j.db?durability=process": Address(
        scheme="sqlite", path="j.db", durability=Durability.PROCESS
    ),
    "memory://x?durability=memory": Address(
        scheme="memory", path="x", durability=Durability.MEMORY
    ),
}


@pytest.mark.parametrize("url", READ)
def test_what_a_url_means(url: str) -> None:
    assert parse(url) == READ[url]


REFUSED = {
    "": "no store URL",
    "  ": "no store URL",
    "jobs.db": "sqlite:///",
    "/srv/jobs.db": "sqlite:///",
    "sqlite:jobs.db": "sqlite:///",
    "sqlite://jobs.db": "sqlite:///",
    "sqlite://host/jobs.db": "names a host",
    "sqlite://": "sqlite:///",
    "sqlite:///": "names no file",
    "sqlite:////srv/": "names no file",
    "sqlite:///:memory:": "memory://",
    "sqlite:///a%00b": "can't be seen",
    "sqlite:///a\nb": "can't be seen",
    "sqlite:///a#b": "%23",
    "memory://a b": "letters",
    "memory://a/b": "letters",
    "memory://me@jobs": "user",
    "mysql://host/db": "no store is called 'mysql'",
    "sqlit:///x": "no store is called 'sqlit'",
    "postgresql://host:port/db": "can't be read",
    "postgresql://host/a/b": "no /",
    "postgresql://host/db?durability=strong": "memory, process, power, replica",
    "postgresql://host/db?schema=": "1 to 40",
    "postgresql://host/db?schema=pg_x": "the server's own",
    "postgresql://host/db?pooler=yes": "session or transaction",
    "postgresql://host/db?notify=maybe": "on or off",
    "amqp:///": "use amqp://",
    "amqp://host/a/b": "%2F",
    "amqp://host/?heartbeat=5": "consumer_timeout",
    "redis://": "can't be read",
    "redis://host:port/0": "can't be read",
    "redis://host?durability=never": "durability=",
    "amqps://host:0/": "use amqp://",
    "redis://one,/0?sentinel=jobs": "can't be read",
    "sqlite:///x?durability=strong": "memory, process, power, replica",
    "sqlite:///x?durability=": "memory, process, power, replica",
    "sqlite:///x?durability=power&durability=process": "once",
    "sqlite:///x?timeout=5": "only durability=",
    "sqlite:///x?durability": "memory, process, power, replica",
}


@pytest.mark.parametrize("url", REFUSED)
def test_what_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert REFUSED[url] in str(caught.value)


SECRET = "S3cr3t!pw"

SHOWN = {
    f"redis://user:{SECRET}@host:6379/0": "redis://user:***@host:6379/0",
    f"redis://:{SECRET}@host": "redis://:***@host",
    f"redis://{SECRET}@host": "redis://***@host",
    f"postgresql://u:a@{SECRET}@host/db": "postgresql://u:***@host/db",
    f"postgresql://u:a/{SECRET}@host/db": "postgresql://u:***@host/db",
    f"postgresql://u:a?b#{SECRET}@host/db": "postgresql://u:***@host/db",
    f"postgresql:///db?user=u&password={SECRET}": "postgresql:///db?user=u&password=***",
    f"postgresql:///db?sslpassword={SECRET}&x=1": "postgresql:///db?sslpassword=***&x=1",
    f"redis://:{SECRET}@one:1,two/0?sentinel=jobs&sentinel_password={SECRET}": (
        "redis://:***@one:1,two/0?sentinel=jobs&sentinel_password=***"
    ),
    f"redis://host?Auth_Token={SECRET}#top": "redis://host?Auth_Token=***#top",
    f"u:{SECRET}@host/db": "u:***@host/db",
    "sqlite:////home/me@corp/a:b.db": "sqlite:////home/me@corp/a:b.db",
    "memory://": "memory://",
    "": "",
}


@pytest.mark.parametrize("url", SHOWN)
def test_what_is_shown_of_a_url(url: str) -> None:
    assert redact(url) == SHOWN[url]


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@host?durability=never",
        f"redis://user:p@ss/{SECRET}@host:1/0",
        f"unix://user:p/{SECRET}@/run/redis.sock",
        f"postgres://user:{SECRET}@host:99999999/db",
        f"mysql://user:{SECRET}@host/db",
        f"sqlite://user:{SECRET}@host/x.db",
        f"memory://user:{SECRET}@host",
        f"user:{SECRET}@host",
        f"sqlite:///x.db?password={SECRET}",
        f"sqlite:///x.db?durability=weak&token={SECRET}",
        f"redis://[user:{SECRET}@host",
        f"sqlite://user:{SECRET}@host/\n",
    ],
)
def test_no_message_shows_a_secret(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    seen: BaseException | None = caught.value
    while seen is not None:
        assert SECRET not in f"{seen!s} {seen!r}"
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize("namespace", ["", "a b", "x" * 129, "a/b", "{tag}"])
def test_bad_namespaces(namespace: str) -> None:
    with pytest.raises(ConfigurationError, match="namespace"):
        connect("memory://", namespace=namespace)


def test_durability_is_said_once() -> None:
    options: dict[str, Any] = {"durability": Durability.POWER}
    with pytest.raises(ConfigurationError, match="disagree"):
        connect("sqlite:///x.db?durability=process", **options)
    connect("sqlite:///x.db?durability=power", **options)


async def test_a_memory_store_keeps_nothing_over_a_power_cut() -> None:
    for store in (
        connect("memory://", durability=Durability.POWER),
        connect("memory://?durability=process"),
    ):
        with pytest.raises(DurabilityError, match="sqlite:///"):
            await store.open()
    await connect("memory://?durability=memory").open()
