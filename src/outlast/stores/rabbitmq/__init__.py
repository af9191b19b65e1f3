"""Jobs on a RabbitMQ broker: quorum queues, confirmed publishes, and acknowledgements by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from outlast.chance import SystemChance
from outlast.clock import SystemClock
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
    open_records: Callable[[], Store] | None = None,
) -> Store:
    """The store of a namespace in one virtual host of a broker.

    ``open_records`` makes handles on the store where its jobs stand, if that is another one; then
    durability is that one's concern.

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

    if open_records is not None:
        from outlast.stores.rabbitmq.recorded import RecordedStore

        recorded = RecordedStore(
            read(url, options),
            open_records(),
            open_records,
            namespace=namespace,
            clock=clock or SystemClock(),
            chance=chance or SystemChance(),
        )
        return cast("Store", recorded)
    from outlast.stores.rabbitmq.store import RabbitStore

    return RabbitStore(
        read(url, options),
        namespace=namespace,
        durability=durability,
        clock=clock,
        chance=chance,
    )
