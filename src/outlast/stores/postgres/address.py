"""Where a server is and how we are to behave towards it: what a postgresql:// URL says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from outlast.errors import ConfigurationError
from outlast.stores.urls import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Address"]

DEFAULT_SCHEMA = "outlast"
_YES_NO = {"on": True, "off": False}


class Address:
    """A server, as the driver wants it and as people may see it."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._url = url
        self.shown = shown(url)
        """Without the password."""
        self.schema = options.get("schema", DEFAULT_SCHEMA)
        # The server cuts longer names off, by bytes, and would then look for another than it made.
        if not 0 < len(self.schema.encode()) <= 40 or not self.schema.isprintable():
            raise ConfigurationError(f"schema={self.schema!r}: use a name of 1 to 40 bytes")
        if self.schema.startswith("pg_"):
            raise ConfigurationError(f"schema={self.schema!r}: pg_ is for the server's own")
        pooler = options.get("pooler", "session")
        if pooler not in ("session", "transaction"):
            raise ConfigurationError(f"pooler={pooler!r}: use session or transaction")
        self.pooled = pooler == "transaction"
        """Whether each transaction may meet another server process."""
        notify = options.get("notify", "on")
        if notify not in _YES_NO:
            raise ConfigurationError(f"notify={notify!r}: use on or off")
        self.notify = _YES_NO[notify]

    def options(self) -> dict[str, Any]:
        """The arguments for the driver. Never shown to anybody: the password is among them."""
        found: dict[str, Any] = {
            "dsn": self._url,
            "server_settings": {"application_name": "outlast"},
        }
        if "," in urlsplit(self._url).netloc:
            found["target_session_attrs"] = "read-write"
        return found


def shown(url: str) -> str:
    """The URL without its password, and with the user, who is no secret."""
    hidden = redact(url)
    login, at, _ = url.partition("://")[2].partition("?")[0].rpartition("@")
    if at and ":" not in login and hidden.startswith(f"{url.partition('://')[0]}://***@"):
        return hidden.replace("://***@", f"://{login}@", 1)
    return hidden
