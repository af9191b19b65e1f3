"""The transport: connections of kombu to a store, consumed in an event loop or by waiting."""

from __future__ import annotations

import os
import select
import threading
from math import ceil
from typing import Any

from kombu.transport import virtual

from outlast.clock import SystemClock
from outlast.contrib.kombu.channel import Channel as OurChannel
from outlast.contrib.kombu.ear import Ear
from outlast.contrib.kombu.shared import NAMESPACE, Shared
from outlast.errors import ConfigurationError, EnqueueUncertain, StoreClosed, StoreUnavailable
from outlast.stores import redact

__all__ = ["Transport"]

MAX_REDELIVERIES = 20
"""As RabbitMQ's quorum queues have it."""
CLAIM_WAIT = 5.0
"""Seconds that a caller who hardly waits gives a claim that is on its way."""


class Transport(virtual.Transport):
    """``outlast+sqlite:///app.db`` and the like, as Celery's ``broker``.

    ``broker_transport_options`` may have a ``namespace``; without one it is ``celery``. And
    ``max_redeliveries``: how often a message is given out again, before it is buried; None is
    without end.
    """

    Channel = OurChannel
    can_parse_url = True
    driver_type = driver_name = "outlast"
    default_port = None
    connection_errors = (
        *virtual.Transport.connection_errors, StoreUnavailable, StoreClosed, EnqueueUncertain,
    )  # fmt: skip
    implements = virtual.Transport.implements.extend(
        asynchronous=True,
        batch_publish=True,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._clock = SystemClock()
        self._shared: Shared | None = None
        self._ear: Ear | None = None
        self._loop: Any = None

    # -- connections

    def establish_connection(self) -> Any:
        self._take()
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        mine, shared, ear = self.mine, self._shared, self._ear
        try:
            super().close_connection(connection)
        finally:
            if self._loop is not None:
                self.unregister_from_event_loop(connection, self._loop)
            self._shared = self._ear = None
            if ear is not None and mine:
                ear.close()
            if shared is not None and mine:
                shared.leave()

    @property
    def max_redeliveries(self) -> int | None:
        """How often a message that comes back is given out again. Raises ``ConfigurationError``."""
        limit = self.client.transport_options.get("max_redeliveries", MAX_REDELIVERIES)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise ConfigurationError(
                f"broker_transport_options: max_redeliveries is {limit!r}; give a number from 0"
                " on, or None for no limit"
            )
        known: int | None = limit
        return known

    @property
    def turns(self) -> bool:
        """Whether the event loop is at work in this very thread: it looks at each of its turns."""
        loop = self._loop
        return loop is not None and getattr(loop, "_loop_thread", None) == threading.get_ident()

    @property
    def mine(self) -> bool:
        """Whether it is open, and opened by this process and not by one that forked it."""
        return self._shared is not None and self._shared.pid == os.getpid()

    @property
    def shared(self) -> Shared:
        """The store; opened anew in a forked child."""
        shared = self._shared
        return shared if shared is not None and shared.pid == os.getpid() else self._take()

    def _take(self) -> Shared:
        _ = self.max_redeliveries  # what is wrong with it is said now
        options = self.client.transport_options
        self._shared = Shared.take(self.client.hostname, options.get("namespace", NAMESPACE))
        self._ear = None
        return self._shared

    @property
    def ear(self) -> Ear:
        shared = self.shared
        if self._ear is None:
            self._ear = Ear(shared.store)
        return self._ear

    def verify_connection(self, connection: Any) -> bool:
        return self.mine

    def driver_version(self) -> str:
        from importlib.metadata import version

        return version("outlast")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return f"outlast+{uri if include_password else redact(uri)}"

    # -- consuming

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message, or raise ``TimeoutError``, which is ``socket.timeout``."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        ear, poll = self.ear, select.poll()
        poll.register(ear.descriptor, select.POLLIN)
        while True:
            self._turn()
            if any(channel.deliver() for channel in self._in_order()):
                return
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and any(channel.claiming for channel in self.channels):
                left = max(left, CLAIM_WAIT)
            if left is not None and left <= 0:
                raise TimeoutError
            poll.poll(None if left is None else ceil(left * 1000))

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        self._loop = loop
        loop.add_reader(self.ear.descriptor, self._serve)
        loop.on_tick.add(self._serve)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        self._loop = None
        loop.on_tick.discard(self._serve)
        if self._ear is not None:
            loop.remove_reader(self._ear.descriptor)

    def _serve(self) -> None:
        """In the event loop, at each of its turns: deliver what has come, and look for more."""
        self._turn(deliver=True)

    def _turn(self, *, deliver: bool = False) -> None:
        ear = self.ear
        ear.hush()
        heard, ear.heard = ear.heard, False
        idle = False
        channels = self._in_order()
        for channel in channels:
            if heard:
                channel.heard()
            channel.collect()
            while deliver and channel.deliver():
                pass
            # Also while another one has no room: a busy worker is to answer.
            idle |= channel.fetch()
        if idle:
            ear.ask([name for channel in channels for name in channel.wants])

    def _in_order(self) -> list[OurChannel]:
        """Remote control before tasks."""
        return sorted(self.channels, key=lambda channel: not channel.urgent)
