"""The examination of a RabbitMQ broker: checks RM1 to RM9, with and without its management API."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import threading
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pika
from pika.exceptions import AMQPError, ChannelClosed

from outlast.chance import SystemChance
from outlast.doctor.report import Finding, Report, Severity
from outlast.errors import OutlastError
from outlast.store import Durability
from outlast.stores.rabbitmq.address import read
from outlast.stores.rabbitmq.declaring import WEAK
from outlast.stores.rabbitmq.engine import NEEDED, OLDEST
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.link import THREAD
from outlast.stores.rabbitmq.topology import (
    ALONE,
    BANDS,
    BELLS,
    LEVELS,
    dead_name,
    level_arguments,
    level_name,
    news_name,
    plain_arguments,
    sweep_name,
)
from outlast.stores.rabbitmq.topology import Place as Line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from outlast.stores.rabbitmq.address import Address as Place
    from outlast.stores.urls import Address

__all__ = ["examine", "findings_of", "remove"]

OK, NOTE, WARNING, ERROR = Severity
PORT = 15672
_OTHER = re.compile(r"inequivalent arg '([^']+)'")
_TAKES = ("max-length", "max-length-bytes", "message-ttl", "expires", "delivery-limit")
"""Settings by which a broker takes messages away, or whole queues."""


async def examine(address: Address, *, required: Durability | None, quick: bool) -> Report:
    """See :func:`outlast.doctor.examine`."""
    promised = Durability.POWER if address.durability is None else address.durability
    wanted = promised if required is None else required
    place = read(address.path, address.options)
    try:
        facts = await asyncio.to_thread(_facts, place, address.options.get("management"), quick)
    except (AMQPError, OSError, OutlastError) as error:
        finding = Finding(
            id="RM0", severity=ERROR, read=str(mapped(error, place.shown)),
            means="the store can't be used as it is", remedy="mend that first, and look again",
        )  # fmt: skip
        return Report(url=place.shown, required=wanted, findings=(finding,), reached=False)
    return Report(url=place.shown, required=wanted, findings=tuple(findings_of(facts)))


def remove(address: Address, namespace: str) -> int:
    """Delete what stands on the broker of a scratch namespace; how many messages that were."""
    place = read(address.path, address.options)
    connection = pika.BlockingConnection(place.parameters("outlast doctor"))
    found = 0
    try:
        channel = connection.channel()
        names = [Line.of(namespace, "default", "work", band).name for band in (*BANDS, ALONE)]
        for name in (*names, dead_name(namespace, "default")):
            found += channel.queue_delete(name).method.message_count
        channel.queue_delete(Line.of(namespace, "default", "work", BELLS).name)
        channel.queue_delete(sweep_name(namespace))
        channel.exchange_delete(news_name(namespace))
    finally:
        connection.close()
    return found


def _facts(place: Place, management: str | None, quick: bool) -> dict[str, Any]:
    thread = threading.current_thread()
    name, thread.name = thread.name, THREAD  # where the client keeps its log to itself
    try:
        facts = _broker(place, quick)
    finally:
        thread.name = name
    facts["management"] = _management(place, management)
    return facts


def _broker(place: Place, quick: bool) -> dict[str, Any]:
    """What it says to any client."""
    connection = pika.BlockingConnection(place.parameters("outlast doctor"))
    try:
        properties = connection._impl.server_properties
        return {
            "product": properties.get("product"), "version": properties.get("version"),
            "can": connection._impl.server_capabilities or {},
            "user": place.settings["credentials"].username, "tls": place.settings["tls"],
            "consumer_timeout": place.consumer_timeout,
            "types": _types(connection, str(properties.get("version"))),
            "path": None if quick else _path(connection),
        }  # fmt: skip
    finally:
        connection.close()


def _types(connection: Any, version: str) -> dict[str, list[str]]:
    """In what the queues under our names differ from ours, as far as the names can be guessed.

    Each that is there is declared as we would: where it is another one, that is refused, and the
    first difference named.
    """
    numbers = _numbers(version)
    ours = {dead_name("default", "default"): plain_arguments(numbers)}
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


def _path(connection: Any) -> dict[str, bool]:
    """Whether a message that nobody takes comes back, and one to a queue is confirmed."""
    name = f"outlast/doctor/{SystemChance().token().hex()}"
    tried = {"returned": False, "confirmed": False}
    channel = connection.channel()
    channel.confirm_delivery()
    try:
        channel.basic_publish("", name, b"", mandatory=True)
    except pika.exceptions.UnroutableError:
        tried["returned"] = True
    kept = {"x-queue-type": "quorum", "x-expires": 60_000}
    channel.queue_declare(name, durable=True, arguments=kept)
    try:
        lasting = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish("", name, b"", lasting, mandatory=True)
        method, _, _ = channel.basic_get(name, auto_ack=True)
        tried["confirmed"] = method is not None
    finally:
        channel.queue_delete(name)
    return tried


def _management(place: Place, url: str | None) -> dict[str, Any] | None:
    """What the management API says; None if it isn't there, or not for this user."""
    base = url or f"http://{place.settings['host']}:{PORT}"
    credentials = place.settings["credentials"]
    login = base64.b64encode(f"{credentials.username}:{credentials.password}".encode()).decode()
    vhost = quote(place.settings["virtual_host"], safe="")

    def ask(path: str) -> Any:
        request = urllib.request.Request(
            f"{base.rstrip('/')}/api/{path}", headers={"Authorization": f"Basic {login}"}
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    try:
        queues = [each for each in ask(f"queues/{vhost}") if each["name"].startswith("outlast/")]
        return {"queues": queues, "nodes": ask("nodes"), "vhost": ask(f"vhosts/{vhost}")}
    except (OSError, ValueError):
        return None


def findings_of(facts: Mapping[str, Any]) -> list[Finding]:
    """What a broker's properties, our queues' kinds and its management API mean."""
    management = facts["management"]
    found = [_version(facts), _kinds(facts), _path_finding(facts)]
    if management is None:
        found += [
            Finding(
                id=id,
                severity=NOTE,
                read="the management API isn't there, or not for this user",
                means=f"{what} can't be told over AMQP",
                remedy="rabbitmq-plugins enable rabbitmq_management, the tag monitoring for the"
                " user, and ?management=http://host:15672 in the URL",
            )
            for id, what in (
                ("RM3", "how many nodes hold each queue"),
                ("RM4", "what policies take away"),
                ("RM6", "what kind of queue is made by default"),
                ("RM7", "whether memory or disk are short"),
            )
        ]
    else:
        found += [_members(management), *_taken(management, facts), _default(management)]
        found += _nodes(management)
    found.append(_security(facts))
    found.append(
        Finding(
            id="RM9",
            severity=NOTE,
            read=f"consumer_timeout {_seconds(facts)}, as the URL says",
            means="no power was cut here: a broker must be tried by restarting it under load",
            remedy="?consumer_timeout= in the URL, if the broker's is another",
        )
    )
    return sorted(found, key=lambda finding: finding.id)


def _seconds(facts: Mapping[str, Any]) -> str:
    timeout = facts["consumer_timeout"]
    return "none" if timeout is None else f"{timeout:g} s"


def _numbers(version: object) -> tuple[int, ...]:
    return tuple(int(part) for part in str(version).split(".")[:2] if part.isdecimal())


def _version(facts: Mapping[str, Any]) -> Finding:
    shown = f"{facts['product']} {facts['version']}"
    numbers = _numbers(facts["version"])
    missing = [name for name in NEEDED if not facts["can"].get(name)]
    if facts["product"] != "RabbitMQ" or numbers < OLDEST or missing:
        lack = f"; lacks {', '.join(missing)}" if missing else ""
        return Finding(
            id="RM1", severity=ERROR, read=shown + lack, durability=Durability.MEMORY,
            means="it can't keep what was accepted", remedy="RabbitMQ 3.10 or later",
        )  # fmt: skip
    return Finding(id="RM1", severity=OK, read=shown)


def _kinds(facts: Mapping[str, Any]) -> Finding:
    types = facts["types"]
    weak = sorted(name for name, differ in types.items() if WEAK.intersection(differ))
    if weak:
        return Finding(
            id="RM2", severity=ERROR, read=f"not a durable quorum queue: {', '.join(weak)}",
            durability=Durability.PROCESS,
            means="classic queues confirm what they have not synced: a power cut takes it",
            remedy="empty and delete them: outlast makes them anew",
        )  # fmt: skip
    other = sorted(f"{name} ({', '.join(differ)})" for name, differ in types.items() if differ)
    if other:
        return Finding(
            id="RM2", severity=WARNING, read=f"other arguments: {'; '.join(other)}",
            durability=Durability.POWER, means="what needs them is refused",
            remedy="empty and delete them: outlast makes them anew",
        )  # fmt: skip
    many = f"{len(types)} of our queues were asked" if types else "none of our queues is there yet"
    return Finding(id="RM2", severity=OK, read=many, durability=Durability.POWER)


def _path_finding(facts: Mapping[str, Any]) -> Finding:
    path = facts["path"]
    if path is None:
        return Finding(id="RM5", severity=NOTE, read="not tried", means="it takes a moment")
    if not (path["returned"] and path["confirmed"]):
        return Finding(
            id="RM5", severity=ERROR, read=f"{path}", durability=Durability.MEMORY,
            means="what lies between here and the broker does not say what became of messages",
            remedy="connect to the broker itself",
        )  # fmt: skip
    return Finding(
        id="RM5", severity=OK, read="what has no queue came back, what has one was confirmed"
    )


def _kept(queue: Mapping[str, Any]) -> Durability | None:
    """What a queue survives that is none of ours by its kind; None if it is."""
    if not queue.get("durable", True):
        return Durability.MEMORY
    if queue.get("type") == "quorum":
        return None
    first = queue.get("storage_version") == 1  # which syncs what it confirms
    return Durability.POWER if first else Durability.PROCESS


def _members(management: Mapping[str, Any]) -> Finding:
    queues = management["queues"]
    weak = {each["name"]: kept for each in queues if (kept := _kept(each)) is not None}
    if weak:
        means = {
            Durability.MEMORY: "a restart takes what it has confirmed",
            Durability.PROCESS: "a power cut takes what it has confirmed",
            Durability.POWER: "it becomes such a one that a power cut empties, with RabbitMQ 4",
        }
        return Finding(
            id="RM3", severity=ERROR, read=f"not a durable quorum queue: {', '.join(weak)}",
            durability=min(weak.values()), means=means[min(weak.values())],
            remedy="empty and delete it: outlast makes it anew",
        )  # fmt: skip
    down = [
        each["name"]
        for each in queues
        if len(each.get("online", ())) * 2 <= len(each.get("members", ()))
    ]
    if down:
        return Finding(
            id="RM3", severity=ERROR, read=f"no majority: {', '.join(down)}",
            means="nothing is accepted there, and nothing is handed out",
            remedy="start the nodes that are down",
        )  # fmt: skip
    least = min((len(each.get("members", ())) for each in queues), default=0)
    best = Durability.REPLICA if least >= 3 else Durability.POWER
    return Finding(
        id="RM3", severity=OK, read=f"{len(queues)} quorum queues, on {least} nodes at least",
        durability=best,
    )  # fmt: skip


def _taken(management: Mapping[str, Any], facts: Mapping[str, Any]) -> list[Finding]:
    found = []
    for each in management["queues"]:
        policy = each.get("effective_policy_definition") or {}
        taking = {name: policy[name] for name in _TAKES if name in policy}
        if taking:
            found.append(
                Finding(
                    id="RM4",
                    severity=WARNING,
                    read=f"{each['name']}: a policy says {taking}",
                    means="the broker takes jobs away by it: they lie with the dead, or nowhere",
                    remedy="leave outlast/ out of that policy's pattern",
                )
            )
        mine = each.get("arguments") or {}
        if mine and (lack := _lack(each["name"], mine, facts["version"])):
            found.append(
                Finding(
                    id="RM4",
                    severity=WARNING,
                    read=f"{each['name']}: {lack}",
                    means="the broker may take jobs away by it, and lose them on their way",
                    remedy="empty and delete it: outlast makes it anew",
                )
            )
        limit = policy.get("consumer-timeout", mine.get("x-consumer-timeout"))
        assumed = facts["consumer_timeout"]
        if limit is not None and (assumed is None or limit < assumed * 1000):
            found.append(
                Finding(
                    id="RM4",
                    severity=WARNING,
                    read=f"{each['name']}: consumer timeout {limit / 1000:g} s, not"
                    f" {_seconds(facts)}",
                    means="a run that takes longer is taken away, and done again elsewhere",
                    remedy=f"?consumer_timeout={limit / 1000:g} in the URL",
                )
            )
    return found or [Finding(id="RM4", severity=OK, read="nothing takes jobs away")]


def _lack(name: str, arguments: Mapping[str, Any], version: object) -> str:
    """What a queue's own arguments let the broker take away or lose, beside what it is made for."""
    taking = {f"x-{each}" for each in _TAKES} & arguments.keys()
    if arguments.get("x-delivery-limit") == -1:
        taking.discard("x-delivery-limit")
    elif _numbers(version) >= (4, 0) and not name.startswith("outlast/delay/"):
        taking.add("x-delivery-limit")  # 20, unless another is set
    if name.startswith("outlast/delay/"):
        taking.discard("x-message-ttl")
    if "x-dead-letter-exchange" in arguments:
        safe = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        taking |= {each for each, wanted in safe.items() if arguments.get(each) != wanted}
    return ", ".join(f"{each} is {arguments.get(each, 'not set')}" for each in sorted(taking))


def _default(management: Mapping[str, Any]) -> Finding:
    kind = management["vhost"].get("default_queue_type") or "classic"
    return Finding(
        id="RM6", severity=OK, read=f"queues of others are {kind} by default",
        means="ours say what they are",
    )  # fmt: skip


def _nodes(management: Mapping[str, Any]) -> list[Finding]:
    found = []
    for node in management["nodes"]:
        wrong = [name for name in ("mem_alarm", "disk_free_alarm") if node.get(name)]
        wrong += [f"partitioned from {other}" for other in node.get("partitions") or ()]
        wrong += [] if node.get("running", True) else ["not running"]
        if wrong:
            found.append(
                Finding(
                    id="RM7",
                    severity=ERROR,
                    read=f"{node['name']}: {', '.join(wrong)}",
                    means="nothing is accepted, or not everywhere",
                    remedy="make room, or mend the cluster",
                )
            )
    many = len(management["nodes"])
    return found or [Finding(id="RM7", severity=OK, read=f"{many} nodes, no alarm")]


def _security(facts: Mapping[str, Any]) -> Finding:
    shown = f"as {facts['user']}, {'with' if facts['tls'] else 'without'} TLS"
    if facts["user"] == "guest":
        return Finding(
            id="RM8", severity=WARNING, read=shown,
            means="everybody knows that user and its password, and it may do anything",
            remedy="rabbitmqctl add_user, and permissions in one virtual host",
        )  # fmt: skip
    if not facts["tls"]:
        return Finding(
            id="RM8", severity=NOTE, read=shown,
            means="who listens on the way reads the jobs, and the password",
            remedy="amqps://, unless it is this host or a network of your own",
        )  # fmt: skip
    return Finding(id="RM8", severity=OK, read=shown)
