"""What is asked of a broker and a result backend: the protocol that every carrier keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from outlast.contrib.celery.beside.wire import Parcel
from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from outlast.contrib.celery.beside.canvas import Part, Result, Size
    from outlast.contrib.celery.beside.wire import Call

__all__ = ["Backend", "Broker", "Taken", "open_backend", "open_broker"]


AMQP = ("amqp", "amqps", "pyamqp", "librabbitmq")


class Taken(Struct, frozen=True, kw_only=True):
    """A message in our hands: it is here until it is acknowledged, or goes back."""

    tag: Any
    raw: bytes
    """As it came, for those that can't be read."""
    queue: str
    parcel: Parcel | None
    """None if not even its envelope can be read."""
    delivery: str | None = None
    """What tells this sending from any other, where the carrier has that."""
    again: bool = False
    """Whether it may have been taken before."""


class Broker(Protocol):
    """Where messages are. Errors of the driver leave as ``StoreUnavailable``."""

    def priority(self, given: int | None) -> int:
        """A message's priority as a job's: higher is sooner."""
        ...

    async def take(
        self, queues: Sequence[str], limit: int, left: float | None = None
    ) -> Sequence[Taken]:
        """At most so many messages, in order; none if there are none.

        Before them come those that a process of ours took more than ``left`` seconds ago and did
        not settle, where the broker does not give these back by itself.
        """
        ...

    async def settle(self, taken: Sequence[Taken]) -> None:
        """Acknowledge: they are stored elsewhere."""
        ...

    async def give_back(self, taken: Sequence[Taken]) -> None:
        """Let others have them, in their old place if there is one."""
        ...

    async def send(self, calls: Sequence[Call]) -> Sequence[BaseException | None]:
        """Send messages; they are the broker's when this returns, but for those with an error.

        One that was sent by us lately is not sent again, where the broker can tell. Raises if
        none was sent, or nobody knows.
        """
        ...

    async def overhear(self, told: Callable[[Parcel], Awaitable[None]]) -> None:
        """Tell what is broadcast to Celery's workers, until cancelled."""
        ...

    async def close(self) -> None: ...


class Backend(Protocol):
    """Where results are expected."""

    keeps_ends: bool
    """Whether a state that comes late never takes the place of an end."""

    async def store(self, results: Sequence[Result], sizes: Sequence[Size]) -> None:
        """Write results and tell those who wait; and the sizes of chords that begin."""
        ...

    async def note(self, results: Sequence[Result]) -> None:
        """Write states that are not the last, but never in place of one that is."""
        ...

    async def part(self, part: Part) -> tuple[Sequence[Any], Any] | None:
        """Count a part of a chord. All of them if it is complete and ours to go on with; and the
        shape that was noted for their results, or None.
        """
        ...

    async def finish(self, group: str) -> None:
        """Forget the parts of a chord whose body was sent."""
        ...

    async def close(self) -> None: ...


def open_broker(url: str, options: Mapping[str, Any]) -> Broker:
    """The broker at a URL as Celery has it; nothing is connected yet.

    Raises ``ConfigurationError``.
    """
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss"):
        from outlast.contrib.celery.beside.redis import RedisBroker

        return RedisBroker(url, options)
    if scheme in AMQP:
        broker: Broker = _rabbit().RabbitBroker(url, options)
        return broker
    raise ConfigurationError(
        f"a broker of kind {scheme!r} is not known here: redis://, rediss://, amqp:// and amqps://"
        " are"
    )


def open_backend(url: str, expires: float, options: Mapping[str, Any]) -> Backend:
    """The same for a result backend; ``expires`` is Celery's ``result_expires`` in seconds."""
    scheme = urlsplit(url).scheme
    if scheme in ("redis", "rediss"):
        from outlast.contrib.celery.beside.redis import RedisBackend

        return RedisBackend(url, expires, options)
    if scheme.startswith("rpc+"):
        backend: Backend = _rabbit().RpcBackend(url.removeprefix("rpc+"))
        return backend
    raise ConfigurationError(
        f"a result backend of kind {scheme!r} is not known here: redis://, rediss:// and rpc:// are"
    )


def _rabbit() -> Any:
    try:
        from outlast.contrib.celery.beside import rabbit
    except ImportError as error:
        raise ConfigurationError(
            "RabbitMQ needs the client pika: pip install 'outlast[rabbitmq]'"
        ) from error
    return rabbit
