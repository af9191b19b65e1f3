"""Where the broker is, and how one logs in."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import pika
from msgspec import Struct

from outlast.errors import ConfigurationError

if TYPE_CHECKING:
    from pika.connection import Parameters

__all__ = ["Address", "read"]

HEARTBEAT = 15
"""Seconds: a peer that is silent for twice as long is gone, and what it held goes to others."""
CONNECT_TIMEOUT = 10.0
CONSUMER_TIMEOUT = 1800.0
"""How long a broker lets a message be unacknowledged, unless it was told otherwise."""
MARGIN = 0.95
"""How much of that a run may last."""


class Address(Struct, frozen=True, kw_only=True):
    """A broker. ``shown`` is its URL without any secret; ``settings`` are those of the client."""

    shown: str
    settings: Mapping[str, Any]
    cafile: str | None = None
    consumer_timeout: float | None = CONSUMER_TIMEOUT
    """The broker's ``consumer_timeout`` in seconds, which no client can ask; None: it has none."""

    @property
    def longest(self) -> float | None:
        """Seconds that a run may last, so that it ends before the broker takes its job away."""
        return None if self.consumer_timeout is None else self.consumer_timeout * MARGIN

    def __repr__(self) -> str:
        return f"Address({self.shown!r})"

    def parameters(self, name: str) -> Parameters:
        """For one connection, which the broker lists under this name."""
        settings = dict(self.settings)
        if settings.pop("tls"):
            try:
                context = ssl.create_default_context(cafile=self.cafile)
            except OSError as error:
                raise ConfigurationError(
                    f"{self.shown}: ?cafile={self.cafile} can't be read as certificates in PEM:"
                    f" {error}"
                ) from None
            settings["ssl_options"] = pika.SSLOptions(context, settings["host"])
        return pika.ConnectionParameters(
            **settings,
            heartbeat=HEARTBEAT,
            socket_timeout=CONNECT_TIMEOUT,
            stack_timeout=CONNECT_TIMEOUT,
            client_properties={"connection_name": name},
        )


def read(url: str, options: Mapping[str, str]) -> Address:
    """Read a URL and what its query asks of us. Raises ``ConfigurationError``."""
    parts = urlsplit(url)
    tls = parts.scheme == "amqps"
    host, port = parts.hostname or "localhost", parts.port or (5671 if tls else 5672)
    user = unquote(parts.username) if parts.username is not None else "guest"
    password = unquote(parts.password) if parts.password is not None else "guest"
    vhost = unquote(parts.path[1:]) or "/"
    place = f"[{host}]" if ":" in host else host
    who = "" if parts.username is None else f"{quote(user, safe='')}@"
    shown = f"{parts.scheme}://{who}{place}:{port}/{quote(vhost, safe='') if vhost != '/' else ''}"
    return Address(
        shown=shown,
        settings={
            "host": host,
            "port": port,
            "virtual_host": vhost,
            "credentials": pika.PlainCredentials(user, password, erase_on_connect=False),
            "tls": tls,
        },
        cafile=options.get("cafile"),
        consumer_timeout=_timeout(options.get("consumer_timeout"), shown),
    )


def _timeout(text: str | None, shown: str) -> float | None:
    if text is None:
        return CONSUMER_TIMEOUT
    if text == "none":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds < float("inf"):
        raise ConfigurationError(
            f"{shown}: consumer_timeout={text}: use the seconds that the broker has been set to, or"
            " none"
        )
    return seconds
