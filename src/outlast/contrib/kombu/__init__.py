"""A kombu transport and a Celery result store: what Celery sends is kept in a store of outlast.

Importing this registers the transport as ``outlast``, and nothing else is loaded for it. kombu
imports it by itself, through its entry points for serializers: it has none for transports.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES

__all__ = ["serializer"]

TRANSPORT_ALIASES.setdefault("outlast", "outlast.contrib.kombu.transport:Transport")


def _dumps(value: Any) -> str:
    from kombu.utils.json import dumps

    return str(dumps(value))


def _loads(text: str | bytes) -> Any:
    from kombu.utils.json import loads

    return loads(text)


serializer = (_dumps, _loads, "application/x-outlast-json", "utf-8")
"""kombu's own JSON under another name: what an entry point for serializers has to be."""
