"""What a RabbitMQ broker and its management API tell the doctor, as plain values."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pika
from pika.exceptions import ChannelClosed, ConnectionBlockedTimeout, UnroutableError

from outlast.chance import SystemChance
from outlast.stores.rabbitmq.leaders import silent
from outlast.stores.rabbitmq.link import THREAD
from outlast.stores.rabbitmq.topology import (
    LEVELS,
    dead_name,
    level_arguments,
    level_name,
    plain_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.stores.rabbitmq.address import Address

__all__ = ["facts_of", "numbers"]

PORT, PORT_WITH_TLS = 15672, 15671
PATIENCE = 5.0
"""Seconds after which an API that says nothing isn't there, and a broker takes no messages."""
LEFT_OVER = 60_000
"""Milliseconds after which the broker deletes a queue of ours, should we be cut off."""
SCRATCH = "outlast/!doctor/"
"""What our queues of a moment begin with: no namespace can be called so."""
_OTHER = re.compile(r"inequivalent arg '([^']+)'")


def facts_of(place: Address, management: str | None, quick: bool) -> dict[str, Any]:
    """All that can be read. ``quick`` leaves out what has to be tried. Raises the client's errors.

    ``management`` within is None if there is no such API, and None in it is what it doesn't tell
    this user.
    """
    thread = threading.current_thread()
    name, thread.name = thread.name, THREAD  # where the client keeps its log to itself
    try:
        facts = _broker(place, quick)
        facts["management"] = told = _management(place, management)
        listed = (told or {}).get("queues") or ()
        names = {*facts["types"], *(each["name"] for each in listed)}
        facts["silent"] = [] if quick else asyncio.run(silent(place, names))
    finally:
        thread.name = name
    return facts


def numbers(version: object) -> tuple[int, ...]:
    """The first two of a version."""
    return tuple(int(part) for part in str(version).split(".")[:2] if part.isdecimal())


def _broker(place: Address, quick: bool) -> dict[str, Any]:
    """What it says to any client."""
    parameters = place.parameters("outlast doctor")
    parameters.blocked_connection_timeout = PATIENCE
    connection = pika.BlockingConnection(parameters)
    try:
        properties = connection._impl.server_properties
        facts = {
            "product": properties.get("product"), "version": properties.get("version"),
            "can": connection._impl.server_capabilities or {},
            "user": place.settings["credentials"].username, "tls": place.settings["tls"],
            "consumer_timeout": place.consumer_timeout,
            "local": _is_local(place.settings["host"], place.settings["port"]),
            "types": _types(connection, str(properties.get("version"))),
            "default": None, "any_name": None, "path": None,
        }  # fmt: skip
        if not quick:
            facts |= {"default": _default(connection), "any_name": _any_name(connection)}
            facts["path"] = _path(connection)  # the last, since an alarm breaks the connection
        return facts
    finally:
        if connection.is_open:
            connection.close()


def _is_local(host: str, port: int) -> bool:
    """Whether the broker sees us come over the loopback: there alone it lets ``guest`` in."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(each[4][0])).is_loopback for each in found)


def _types(connection: Any, version: str) -> dict[str, list[str]]:
    """In what the queues under our names differ from ours, as far as the names can be guessed.

    Each that is there is declared as we would: where it is another one, that is refused, and the
    first difference named.
    """
    known = numbers(version)
    ours = {dead_name("default", "default"): plain_arguments(known)}
    ours |= {level_name(level): level_arguments(level) for level in range(LEVELS)}
    found: dict[str, list[str]] = {}
    for name, arguments in ours.items():
        try:
            connection.channel().queue_declare(name, passive=True)
        except ChannelClosed:
            continue
        differ = found[name] = []
        while True:
            try:
                connection.channel().queue_declare(name, durable=True, arguments=arguments)
                break
            except ChannelClosed as error:
                match = _OTHER.search(error.reply_text)
                differ.append(match[1] if match else error.reply_text)
                if arguments.pop(differ[-1], None) is None:
                    break
    return found


def _scratch() -> str:
    return f"{SCRATCH}{SystemChance().token().hex()}"


@contextmanager
def _queue(connection: Any, name: str, **arguments: Any) -> Iterator[None]:
    """A queue that is there for a moment."""
    told = {"x-expires": LEFT_OVER, **arguments}
    connection.channel().queue_declare(name, durable=True, arguments=told)
    try:
        yield
    finally:
        if connection.is_open:
            connection.channel().queue_delete(name)


def _default(connection: Any) -> str | None:
    """What a queue is whose maker doesn't say: of each kind it is asked whether it is that one."""
    name = _scratch()
    with _queue(connection, name):
        for kind in ("classic", "quorum"):
            told = {"x-expires": LEFT_OVER, "x-queue-type": kind}
            try:
                connection.channel().queue_declare(name, durable=True, arguments=told)
                return kind
            except ChannelClosed:
                continue
    return None


def _any_name(connection: Any) -> bool:
    """Whether this user may make queues that are not called as ours are."""
    name = f"doctor-of-{_scratch()}"
    try:
        connection.channel().queue_declare(name, exclusive=True, auto_delete=True)
    except ChannelClosed:
        return False
    connection.channel().queue_delete(name)
    return True


def _path(connection: Any) -> dict[str, bool]:
    """Whether a message that nobody takes comes back, and one to a queue is confirmed.

    Neither is tried to the end where the broker takes no messages now, short of memory or disk.
    """
    name = _scratch()
    tried = {"returned": False, "confirmed": False, "blocked": False}

    channel = connection.channel()
    channel.confirm_delivery()
    try:
        with _queue(connection, name, **{"x-queue-type": "quorum"}):
            try:
                channel.basic_publish("", f"{name}/nobody", b"", mandatory=True)
            except UnroutableError:
                tried["returned"] = True
            lasting = pika.BasicProperties(delivery_mode=2)
            channel.basic_publish("", name, b"", lasting, mandatory=True)
            method, _, _ = channel.basic_get(name, auto_ack=True)
            tried["confirmed"] = method is not None
    except ConnectionBlockedTimeout:
        tried["blocked"] = True
    return tried


def _is_ours(name: str) -> bool:
    return name.startswith("outlast/") and not name.startswith(SCRATCH)


def _management(place: Address, url: str | None) -> dict[str, Any] | None:
    """What the management API says; None if it isn't there, or not for this user."""
    host, context = place.settings["host"], None
    if place.settings["tls"]:
        # The password that goes there is not to be read on the way either.
        url = url or f"https://{host}:{PORT_WITH_TLS}"
        context = ssl.create_default_context(cafile=place.cafile)
    base = url or f"http://{host}:{PORT}"
    credentials = place.settings["credentials"]
    login = base64.b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
    vhost = quote(place.settings["virtual_host"], safe="")

    def ask(path: str) -> Any:
        """None if this user may not know, or this version doesn't."""
        request = urllib.request.Request(
            f"{base.rstrip('/')}/api/{path}", headers={"Authorization": f"Basic {login}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as refused:
            refused.close()  # it holds the connection
            return None
        except (OSError, ValueError):
            return None

    me = ask("whoami")
    if me is None:
        return None
    tags = me.get("tags") or []
    queues = ask(f"queues/{vhost}")
    if queues is not None:
        queues = [each for each in queues if _is_ours(each["name"])]
    user = quote(credentials.username, safe="")
    return {
        # A list since 3.9, and a text with commas before.
        "tags": tags.split(",") if isinstance(tags, str) else tags,
        "queues": queues,
        "nodes": ask("nodes"),
        "vhost": ask(f"vhosts/{vhost}"),
        "flags": ask("feature-flags"),
        "deprecated": ask("deprecated-features/used"),
        "permissions": ask(f"permissions/{vhost}/{user}"),
        "guest": ask("users/guest"),
    }
