"""Opens a store by its URL; each store is one package, imported only when it is named."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from outlast.errors import ConfigurationError
from outlast.limits import check_name
from outlast.store import Durability
from outlast.stores.urls import parse, redact

if TYPE_CHECKING:
    from collections.abc import Callable

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.store import Store
    from outlast.stores.urls import Address

__all__ = ["connect", "redact"]


def connect(
    url: str,
    *,
    namespace: str = "default",
    durability: Durability | None = None,
    create: bool = True,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> Store:
    """The store behind a URL, not opened yet; nothing is touched before its ``open``.

    ``sqlite:///jobs.db`` is a file in this folder, ``sqlite:////srv/jobs.db`` an absolute path.
    ``memory://`` is a store of its own with each call, ``memory://name`` is shared by all in this
    process that use the name. ``postgresql://user@host/database`` is a PostgreSQL server, with the
    driver of the extra ``postgres``. ``redis://user:password@host:6379/0`` is a Redis or Valkey
    server, with that of the extra ``redis``; ``rediss://`` speaks TLS, ``unix:///path`` is a
    socket. ``amqp://user:password@host:5672/vhost`` is RabbitMQ, with that of the extra
    ``rabbitmq``; ``amqps://`` speaks TLS; with ``?records=`` and the URL of another store,
    percent-encoded, the jobs stand there. ``durability``, here or as ``?durability=`` in the URL,
    is what must hold: power if nothing is said, and just memory for a memory store. With
    ``create=False`` a missing file is an error of ``open``.

    Raises ``ConfigurationError`` for a URL, a namespace or a combination that can't be meant.
    """
    address = parse(url)
    check_name(namespace, "namespace")
    if durability is not None and not isinstance(durability, Durability):
        raise ConfigurationError(
            f"durability {durability!r}: use outlast.Durability.POWER or its like"
        )
    required = address.durability
    if durability is not None and required not in (None, durability):
        raise ConfigurationError(
            f"{redact(url)!r} and the argument durability={durability} disagree: say it once"
        )
    if required is None:
        required = durability
    return _open(address, required, namespace, create, clock, chance)


def _open(
    address: Address,
    required: Durability | None,
    namespace: str,
    create: bool,
    clock: Clock | None,
    chance: Chance | None,
) -> Store:
    place = address.path
    if address.scheme == "memory":
        from outlast.stores.memory import open_memory

        return open_memory(
            place, namespace=namespace, durability=required, clock=clock, chance=chance
        )
    if address.scheme == "postgresql":
        from outlast.stores.postgres import open_postgres

        return open_postgres(
            place,
            address.options,
            namespace=namespace,
            durability=required,
            create=create,
            clock=clock,
            chance=chance,
        )
    if address.scheme == "redis":
        from outlast.stores.redis import open_redis

        return open_redis(
            place,
            namespace=namespace,
            durability=required,
            create=create,
            clock=clock,
            chance=chance,
        )
    if address.scheme == "rabbitmq":
        return _open_rabbitmq(address, required, namespace, create, clock, chance)
    from outlast.stores.sqlite import open_sqlite

    return open_sqlite(
        place,
        namespace=namespace,
        durability=required,
        create=create,
        clock=clock,
        chance=chance,
    )


def _open_rabbitmq(
    address: Address,
    required: Durability | None,
    namespace: str,
    create: bool,
    clock: Clock | None,
    chance: Chance | None,
) -> Store:
    from outlast.stores.rabbitmq import open_rabbitmq

    open_records: Callable[[], Store] | None = None
    if address.records is not None:
        open_records = partial(
            connect, address.records, namespace=namespace, durability=required, create=create,
            clock=clock, chance=chance,
        )  # fmt: skip
    return open_rabbitmq(
        address.path,
        address.options,
        namespace=namespace,
        durability=required,
        clock=clock,
        chance=chance,
        open_records=open_records,
    )
