"""The server of a Celery app as the doctor finds it: how durable it is, and what is stuck there."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import DecodeError, json

from outlast.clock import SystemClock
from outlast.doctor.report import Finding, Severity
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from outlast.doctor.celery import Setup

__all__ = ["look_at"]

OK, NOTE, WARNING, ERROR = Severity
SETTINGS = (
    "appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite", "save",
    "maxmemory", "requirepass",
)  # fmt: skip
STEPS = ("", *(f"\x06\x16{step}" for step in (3, 6, 9)))
"""What kombu appends to a queue's name for the lists of its priorities."""
MANY = 10_000
"""Of so many unacknowledged messages each one is looked at."""


def look_at(setup: Setup, connection: Any) -> tuple[list[Finding], bool]:
    """Findings, and whether the server was reached."""
    from kombu.exceptions import KombuError

    try:
        connection.ensure_connection(max_retries=1, timeout=10)
        if setup.driver == "redis":
            client = connection.default_channel.client
            return [*_redis(client), _waiting(setup, client)], True
        if setup.driver == "amqp":
            return [*_rabbit(setup, connection)], True
    except (KombuError, OSError, *connection.connection_errors) as error:
        return [
            Finding(
                id="CE0",
                severity=ERROR,
                read=f"{type(error).__name__}: {error}",
                means="the server can't be reached: what follows is read from the settings alone",
                remedy="mend that first, and look again",
            )
        ], False
    return [], True


def _redis(client: Any) -> list[Finding]:
    """The checks of ``outlast doctor redis://...``, with what this client reads."""
    from redis.exceptions import ResponseError

    from outlast.doctor.redis import findings_of

    facts = {name: str(value) for name, value in client.info().items()}
    for name in SETTINGS:
        try:
            facts.update(client.config_get(name))
        except ResponseError:
            continue  # not allowed: what can't be read is not promised
    facts.setdefault("maxmemory-policy", facts.get("maxmemory_policy", ""))
    try:
        facts["whoami"] = str(client.acl_whoami())
    except ResponseError:
        facts["whoami"] = ""
    return findings_of({name: _text(value) for name, value in facts.items()}, None)


def _waiting(setup: Setup, client: Any) -> Finding:
    """What lies in the app's queues, and what workers took and never acknowledged."""
    prefix = setup.options.get("global_keyprefix", "")
    lengths = {
        name: sum(client.llen(f"{prefix}{name}{step}") for step in STEPS) for name in setup.queues
    }
    now = SystemClock().now()
    limit = setup.visibility or 0.0
    stuck = client.zcount(f"{prefix}unacked_index", "-inf", now - limit)
    far = _far(client, f"{prefix}unacked", now + limit)
    shown = ", ".join(f"{name}: {count} waiting" for name, count in lengths.items())
    shown += f"; {client.hlen(f'{prefix}unacked')} unacknowledged"
    if far:
        return Finding(
            id="CE18", severity=ERROR, read=f"{shown}, {far} with an eta beyond the visibility"
            " timeout",
            means=f"each of these is handed to one more worker every {limit:g} s, and run by all",
            remedy="raise visibility_timeout above the furthest eta, and restart every worker",
        )  # fmt: skip
    if stuck:
        return Finding(
            id="CE18", severity=WARNING, read=f"{shown}, {stuck} for longer than {limit:g} s",
            means="workers died, or hang, and no other one has taken their tasks over",
            remedy="see that a worker runs on these queues: it takes them over",
        )  # fmt: skip
    return Finding(id="CE18", severity=OK, read=shown)


def _far(client: Any, key: str, moment: float) -> int:
    """How many of the unacknowledged messages are due after that moment."""
    found = 0
    for number, (_, entry) in enumerate(client.hscan_iter(key, count=500)):
        if number >= MANY:
            break
        try:
            eta = json.decode(entry)[0]["headers"].get("eta")
            due = datetime.fromisoformat(eta).timestamp() if eta else 0.0
        except (DecodeError, ValueError, TypeError, KeyError, IndexError, AttributeError):
            continue  # somebody else's
        found += due > moment
    return found


def _rabbit(setup: Setup, connection: Any) -> Sequence[Finding]:
    properties = connection.connection.server_properties
    version = _text(properties.get("version", "0"))
    return [_limit(setup, version), _there(setup, connection)]


def _limit(setup: Setup, version: str) -> Finding:
    shown = f"RabbitMQ {version}"
    quorum = [
        name
        for name, queue in setup.queues.items()
        if (queue.queue_arguments or {}).get("x-queue-type") == "quorum"
    ]
    buried = all("x-dead-letter-exchange" in setup.queues[n].queue_arguments for n in quorum)
    major = int(version.partition(".")[0]) if version.partition(".")[0].isdecimal() else 0
    if quorum and major >= 4 and not buried:
        return Finding(
            id="CE19",
            severity=ERROR,
            read=f"{shown}, quorum queues without a dead letter exchange",
            durability=Durability.MEMORY,
            means="a message that was handed out 20 times is dropped without a word",
            remedy='queue_arguments={"x-dead-letter-exchange": …} in task_queues, or a policy',
        )
    return Finding(id="CE19", severity=OK, read=shown)


def _there(setup: Setup, connection: Any) -> Finding:
    """Which of the app's queues exist, and what waits in them; declared passively, so not made."""
    counts, missing = [], []
    for name in setup.queues:
        channel = connection.channel()
        try:
            found = channel.queue_declare(queue=name, passive=True)
            counts.append(f"{name}: {found.message_count} waiting")
            channel.close()
        except connection.channel_errors:
            missing.append(name)
    if missing:
        return Finding(
            id="CE18", severity=NOTE, read=", ".join([*counts, f"no queue {', '.join(missing)}"]),
            means="it is made by the first worker; what is sent before goes to the sender's own "
            "declaration of it",
        )  # fmt: skip
    return Finding(id="CE18", severity=OK, read=", ".join(counts))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
