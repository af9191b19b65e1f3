"""Jobs on a RabbitMQ broker: quorum queues, confirmed publishes, and acknowledgements by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.chance import Chance
    from outlast.clock import Clock
    from outlast.store import Durability, Store

__all__ = ["open_rabbitmq"]


def open_rabbitmq(
    url: str,
    options: Mapping[str, str],
    *,
    namespace: str = "default",
    durability: Durability | None = None,
    clock: Clock | None = None,
    chance: Chance | None = None,
) -> Store:
    """The store of a namespace in one virtual host of a broker.

    Raises ``ConfigurationError`` if pika isn't installed or the URL can't be meant.
    """
    try:
        import pika  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            "RabbitMQ needs the client pika, which is not installed: pip install"
            " 'outlast[rabbitmq]'"
        ) from None
    from outlast.stores.rabbitmq.address import read
    from outlast.stores.rabbitmq.store import RabbitStore

    return RabbitStore(
        read(url, options),
        namespace=namespace,
        durability=durability,
        clock=clock,
        chance=chance,
    )
