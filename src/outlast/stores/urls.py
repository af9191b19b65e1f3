"""Store URLs: read, checked, and shown without their secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from msgspec import Struct

from outlast.errors import ConfigurationError
from outlast.limits import check_name
from outlast.store import Durability

__all__ = ["EXAMPLES", "Address", "file_url", "is_url", "parse", "redact", "with_records"]

EXAMPLES = (
    "memory://, sqlite:///jobs.db (this folder), sqlite:////var/lib/app/jobs.db,"
    " postgresql://user@host/database, redis://host:6379/0 or amqp://host:5672/vhost"
)
"""For messages: a URL of each store."""
_RABBIT = ("amqp", "amqps")
_RABBIT_OPTIONS = ("consumer_timeout", "cafile", "management")
_POSTGRES = ("postgresql", "postgres")
_POSTGRES_OPTIONS = ("schema", "pooler", "notify")
_REDIS = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "redis",
    "valkeys": "rediss",
    "unix": "unix",
}
"""What the driver calls them; ``unix`` is a socket of this host."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRETS = re.compile(r"(?i)([?&;][^=&;]*(?:pass|pwd|secret|token|key|auth)[^=&;]*=)[^&;#]*")
_RECORDS = re.compile(r"(?i)[?&;]records=")
_PLAIN = ":/*,"
"""What is left as it is in a URL within a URL, so that people can read it. An @ is not: whoever
looks for passwords takes the last one of a URL for the end of them."""
_CLASSES = {str(each): each for each in Durability}


class Address(Struct, frozen=True, kw_only=True):
    """Where a store is: its kind, what comes after ``://``, and what the query asks for.

    For a server ``path`` is a URL for its driver, which may hold a password.
    """

    scheme: str
    path: str
    durability: Durability | None = None
    options: Mapping[str, str] = {}
    records: str | None = None
    """The URL of the store where a broker's jobs stand, which may hold a password."""

    def __repr__(self) -> str:
        return f"Address({self.scheme!r}, {redact(self.path)!r})"


def redact(url: str) -> str:
    """The URL as people may see it: ``scheme://user:***@host``. Never fails, whatever it is given.

    Only this function turns a URL into text for messages, logs and pages. The user part ends at the
    last ``@`` before the path; a password may hold ``/`` or ``@`` unquoted, so if in doubt more
    than the password is hidden.
    """
    within = _RECORDS.search(url)
    if within is not None:
        records = redact(unquote(url[within.end() :]))
        return redact(url[: within.start()]) + within[0] + quote(records, safe=_PLAIN + "?&=")
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    # After :// a slash begins a path; two slashes without it are a URL that has lost its scheme.
    is_path = rest.startswith("/") and (mark or not rest.startswith("//"))
    login, at, place = ("", "", rest) if is_path else rest.rpartition("@")
    if at:
        user, colon, _ = login.partition(":")
        login = f"{user}:***" if colon else "***"
    elif not mark and not is_path and ":" in place:
        place = f"{place.partition(':')[0]}:***"
    return _SECRETS.sub(r"\1***", f"{scheme}{mark}{login}{at}{place}")


def is_url(text: str) -> bool:
    """Whether it begins like a URL: what doesn't may be all secret, such as a password alone."""
    return _SCHEME.match(text) is not None


def parse(url: str) -> Address:
    """Read a URL. Raises ``ConfigurationError``, which says what was found and what to write."""
    if not isinstance(url, str):
        raise ConfigurationError(f"a URL is a text, not {type(url).__name__}: use {EXAMPLES}")
    if not url.strip():
        raise ConfigurationError(f"no store URL was given: use {EXAMPLES}")
    match = _SCHEME.match(url)
    if match is None:
        raise ConfigurationError(f"{redact(url)!r} is not a store URL: use {EXAMPLES}")
    scheme = match[1].lower()
    if scheme not in ("memory", "sqlite", *_POSTGRES, *_REDIS, *_RABBIT):
        raise ConfigurationError(f"{redact(url)!r}: no store is called {scheme!r}: use {EXAMPLES}")
    if any(not mark.isprintable() for mark in url):
        raise ConfigurationError(f"{redact(url)!r} holds a character that can't be seen")
    rest, _, query = url[match.end() :].partition("?")
    if "#" in rest + query:
        raise ConfigurationError(f"{redact(url)!r}: write %23 for a # in a name")
    if scheme in _POSTGRES:
        return _server(rest, query, url)
    if scheme in _REDIS:
        return _redis(_REDIS[scheme], rest, query, url)
    if scheme in _RABBIT:
        return _rabbit(scheme, rest, query, url)
    return Address(
        scheme=scheme,
        path=_room(rest, url) if scheme == "memory" else _file(rest, url),
        durability=_durability(query, url),
    )


def _server(rest: str, query: str, url: str) -> Address:
    """A PostgreSQL server: what is not ours in the query is for the driver."""
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    asked: list[tuple[str, str]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "durability":
            asked.append((name, value))
        elif name in _POSTGRES_OPTIONS:
            ours[name] = value
        else:
            theirs.append((name, value))
    path = f"postgresql://{rest}"
    try:
        parts = urlsplit(path)
        _ = parts.port if "," not in parts.netloc else None
    except ValueError:
        raise ConfigurationError(
            f"{redact(url)!r} can't be read: write %40 for an @ in a password, %2F for a /"
        ) from None
    if "/" in parts.path[1:]:
        raise ConfigurationError(
            f"{redact(url)!r}: a database name holds no /; write %40 for an @ in a password, %2F"
            " for a /"
        )
    if theirs:
        path += "?" + urlencode(theirs)
    durability = _durability(urlencode(asked), url)
    return Address(scheme="postgresql", path=path, durability=durability, options=ours)


def _redis(scheme: str, rest: str, query: str, url: str) -> Address:
    """A Redis or Valkey server: what is not ours in the query is for the driver."""
    pairs = parse_qsl(query, keep_blank_values=True)
    ours = urlencode([pair for pair in pairs if pair[0] == "durability"])
    theirs = urlencode([pair for pair in pairs if pair[0] != "durability"])
    path = f"{scheme}://{rest}?{theirs}" if theirs else f"{scheme}://{rest}"
    try:
        parts = urlsplit(path)
        number = parts.path.strip("/")
        if scheme == "unix":
            fits = bool(number) and "@" not in number
        else:
            fits = not number or number.isdecimal()
            # Several are sentinels, which tell where the server is, or nodes of a cluster.
            hosts = parts.netloc.rpartition("@")[2].split(",")
            for each in (urlsplit(f"//{host}") for host in hosts):
                fits = fits and each.port != 0 and each.hostname is not None
    except ValueError:
        fits = False
    if not fits:
        raise ConfigurationError(
            f"{redact(url)!r} can't be read: use redis://user:password@host:6379/0, or"
            " unix:///path?db=0; write %40 for an @ in a password, %2F for a /"
        )
    return Address(scheme="redis", path=path, durability=_durability(ours, url))


def _rabbit(scheme: str, rest: str, query: str, url: str) -> Address:
    """A virtual host of a RabbitMQ broker: what the client needs is ours to say."""
    ours: dict[str, str] = {}
    asked: list[tuple[str, str]] = []
    records: list[str] = []
    others: list[str] = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        # A + is a + here: most who write a URL into a URL encode less than they might.
        (records if name == "records" else others).append(
            unquote(value) if name == "records" else part
        )
    for name, value in parse_qsl("&".join(others), keep_blank_values=True):
        if name in _RABBIT_OPTIONS and name not in ours:
            ours[name] = value
        elif name == "durability":
            asked.append((name, value))
        else:
            raise ConfigurationError(
                f"{redact(url)!r}: after the ? there may be durability=,"
                f" {'=, '.join(_RABBIT_OPTIONS)}= and records=, each once"
            )
    path = f"{scheme}://{rest}"
    try:
        parts = urlsplit(path)
        fits = parts.port != 0 and bool(parts.hostname) and "/" not in parts.path[1:]
    except ValueError:
        fits = False
    if not fits:
        raise ConfigurationError(
            f"{redact(url)!r} can't be read: use amqp://user:password@host:5672/vhost; write %40"
            " for an @ in a password, %2F for a / in it or in the name of a virtual host"
        )
    return Address(
        scheme="rabbitmq",
        path=path,
        durability=_durability(urlencode(asked), url),
        options=ours,
        records=_records(records, url),
    )


def _records(given: Sequence[str], url: str) -> str | None:
    if not given:
        return None
    if len(given) > 1:
        raise ConfigurationError(f"{redact(url)!r}: records= is given twice")
    address = parse(given[0])
    if address.scheme == "rabbitmq" or (address.scheme == "memory" and not address.path):
        raise ConfigurationError(
            f"{redact(url)!r}: records are kept in postgresql://, redis:// or sqlite:///"
        )
    return given[0]


def with_records(url: str, records: str) -> str:
    """The URL of a broker with that of its records in it.

    Raises ``ConfigurationError`` if it isn't one, or has others.
    """
    address = parse(url)
    if address.scheme != "rabbitmq":
        raise ConfigurationError(f"{redact(url)!r} keeps its own records: leave records= away")
    if address.records is not None:
        if address.records != records:
            raise ConfigurationError(
                f"{redact(url)!r} and the argument records= disagree: say it once"
            )
        return url
    mark = "&" if "?" in url else "?"
    found = f"{url}{mark}records={quote(records, safe=_PLAIN)}"
    parse(found)
    return found


def _room(rest: str, url: str) -> str:
    name = rest.rstrip("/")
    if name:
        if "@" in name:
            raise ConfigurationError(f"{redact(url)!r}: a memory store has no user")
        check_name(name, "memory://")
    return name


def _file(rest: str, url: str) -> str:
    """The file: relative after three slashes, absolute after four."""
    if not rest.startswith("/"):
        raise ConfigurationError(
            f"{redact(url)!r} names a host, but SQLite is a file: use sqlite:/// and a name in "
            f"this folder, or sqlite://// and an absolute path"
        )
    path = unquote(rest[1:])
    if not path or path.endswith("/"):
        raise ConfigurationError(f"{redact(url)!r} names no file: use sqlite:///jobs.db")
    if path == ":memory:":
        raise ConfigurationError(f"{redact(url)!r} keeps nothing: use memory:// if that is meant")
    if path.startswith("file:"):
        raise ConfigurationError(
            f"{redact(url)!r}: SQLite's own file: URIs are not for outlast; name the file itself"
        )
    if not path.isprintable():
        raise ConfigurationError(f"{redact(url)!r}: a file name can't hold what can't be seen")
    return path


def file_url(path: str) -> str:
    """The URL of a file by its absolute path: ``parse`` gives the path back."""
    marks = (c if c.isprintable() and c not in "%?#" else quote(os.fsencode(c)) for c in path)
    return f"sqlite:///{''.join(marks)}"


def _durability(query: str, url: str) -> Durability | None:
    found: Durability | None = None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "durability" or found is not None:
            raise ConfigurationError(
                f"{redact(url)!r}: after the ? only durability= is known, and once"
            )
        found = _CLASSES.get(value)
        if found is None:
            raise ConfigurationError(
                f"{redact(url)!r}: use one of durability={', '.join(_CLASSES)}"
            )
    return found
