"""The examination of a RabbitMQ broker: checks RM1 to RM9, with and without its management API."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from typing import TYPE_CHECKING, Any

import pika
from pika.exceptions import AMQPError

from outlast.doctor.rabbitmq_facts import facts_of, numbers
from outlast.doctor.report import Finding, Report, Severity
from outlast.errors import OutlastError
from outlast.store import Durability
from outlast.stores.rabbitmq.address import read
from outlast.stores.rabbitmq.declaring import WEAK
from outlast.stores.rabbitmq.engine import NEEDED, OLDEST
from outlast.stores.rabbitmq.faults import mapped
from outlast.stores.rabbitmq.topology import ALONE, BANDS, BELLS, dead_name, news_name, sweep_name
from outlast.stores.rabbitmq.topology import Place as Line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from outlast.stores.urls import Address

__all__ = ["examine", "findings_of", "remove"]

OK, NOTE, WARNING, ERROR = Severity
FULL = 0.8
"""How much of a limit may be used."""
RIGHTS = r"'^(outlast/|amq\.gen-)' '^(outlast/|amq\.(gen-|default$))' '^(outlast/|amq\.gen-)'"
"""What a user of outlast needs: to configure, to write, to read. A worker hears what is new by a
queue that the broker names."""
_TAKES = ("max-length", "max-length-bytes", "message-ttl", "expires", "delivery-limit")
"""Settings by which a broker takes messages away, or whole queues."""


async def examine(address: Address, *, required: Durability | None, quick: bool) -> Report:
    """See :func:`outlast.doctor.examine`."""
    promised = Durability.POWER if address.durability is None else address.durability
    wanted = promised if required is None else required
    place = read(address.path, address.options)
    try:
        facts = await asyncio.to_thread(facts_of, place, address.options.get("management"), quick)
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


def findings_of(facts: Mapping[str, Any]) -> list[Finding]:
    """What a broker's properties, our queues' kinds and its management API mean."""
    told = facts["management"] or {}
    found = [_version(facts), _kinds(facts), _path_finding(facts)]
    queues, nodes = told.get("queues"), told.get("nodes")
    members = _untold("RM3", told) if queues is None else _members(queues)
    found += _leaderless(facts["silent"], members)
    found += [_untold("RM4", told)] if queues is None else _taken(queues, facts)
    found += _surprises(facts, told)
    found += [_alarm(facts, told)] if nodes is None else _nodes(nodes)
    found += _security(facts, told)
    found.append(
        Finding(
            id="RM9",
            severity=NOTE,
            read=f"consumer_timeout {_seconds(facts)}, as the URL says",
            means="nothing was restarted here, and no client can ask for that timeout",
            remedy="outlast doctor URL --restart-cmd COMMAND; and ?consumer_timeout= in the URL, if"
            " the broker's is another",
        )
    )
    return sorted(found, key=lambda finding: finding.id)


def _seconds(facts: Mapping[str, Any]) -> str:
    timeout = facts["consumer_timeout"]
    return "none" if timeout is None else f"{timeout:g} s"


def _version(facts: Mapping[str, Any]) -> Finding:
    shown = f"{facts['product']} {facts['version']}"
    found = numbers(facts["version"])
    missing = [name for name in NEEDED if not facts["can"].get(name)]
    if facts["product"] != "RabbitMQ" or found < OLDEST or missing:
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
    if path.get("blocked"):
        return Finding(
            id="RM5", severity=NOTE, read="not tried to the end",
            means="the broker takes no messages now",
        )  # fmt: skip
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


def _members(queues: Sequence[Mapping[str, Any]]) -> Finding:
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


def _leaderless(names: Sequence[str], members: Finding) -> list[Finding]:
    """Queues that don't answer: the management API shows them as if nothing were the matter."""
    if not names:
        return [members]
    return [
        Finding(
            id="RM3", severity=ERROR, read=f"no leader: {', '.join(names)}",
            means="nothing is accepted there, and nothing is handed out; workers lose their"
            " connection over it",
            remedy="start the nodes of the cluster that are down. If none is, the broker died in"
            " the moment in which the queue was made, and nothing is in it: rabbitmqctl"
            " delete_queue, and outlast makes it anew",
        ),
        *([members] if members.severity is ERROR else ()),
    ]  # fmt: skip


def _taken(queues: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[Finding]:
    found = []
    for each in queues:
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
    elif numbers(version) >= (4, 0) and not name.startswith("outlast/delay/"):
        taking.add("x-delivery-limit")  # 20, unless another is set
    if name.startswith("outlast/delay/"):
        taking.discard("x-message-ttl")
    if "x-dead-letter-exchange" in arguments:
        safe = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
        taking |= {each for each, wanted in safe.items() if arguments.get(each) != wanted}
    return ", ".join(f"{each} is {arguments.get(each, 'not set')}" for each in sorted(taking))


def _surprises(facts: Mapping[str, Any], told: Mapping[str, Any]) -> list[Finding]:
    """What a queue is whose maker doesn't say, and what an upgrade will meet."""
    vhost = told.get("vhost") or {}
    kind = vhost.get("default_queue_type") or "undefined"
    if kind == "undefined":
        kind = facts["default"] or ("classic" if vhost else None)
    if kind is None:
        found = [_untold("RM6", told)]
    else:
        read = f"queues of others are {kind} by default"
        found = [Finding(id="RM6", severity=OK, read=read, means="ours say what they are")]
    off = [
        str(flag["name"])
        for flag in told.get("flags") or ()
        if flag.get("state") == "disabled" and flag.get("stability") == "stable"
    ]
    if off:
        found.append(
            Finding(
                id="RM6",
                severity=NOTE,
                read=f"feature flags that are off: {', '.join(sorted(off))}",
                means="a later RabbitMQ may need them, and then it does not start",
                remedy="rabbitmqctl enable_feature_flag all, before the next upgrade",
            )
        )
    if used := [str(each["name"]) for each in told.get("deprecated") or ()]:
        found.append(
            Finding(
                id="RM6",
                severity=NOTE,
                read=f"deprecated features in use: {', '.join(sorted(used))}",
                means="by others: outlast needs none. A later RabbitMQ refuses them",
                remedy="find who uses them before the next upgrade: rabbitmqctl"
                " list_deprecated_features --used",
            )
        )
    return found


def _alarm(facts: Mapping[str, Any], told: Mapping[str, Any]) -> Finding:
    """What can be known of the nodes without asking for them."""
    path = facts["path"]
    if path is not None and path.get("blocked"):
        return Finding(
            id="RM7", severity=ERROR, read="it takes no messages: an alarm of memory or disk",
            means="nothing is accepted until that is over",
            remedy="make room; see rabbitmq-diagnostics alarms",
        )  # fmt: skip
    return _untold("RM7", told)


def _nodes(nodes: Sequence[Mapping[str, Any]]) -> list[Finding]:
    found = []
    for node in nodes:
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
        elif near := _near(node):
            found.append(
                Finding(
                    id="RM7",
                    severity=WARNING,
                    read=f"{node['name']}: {', '.join(near)}",
                    means="soon it takes no more connections, or no more messages",
                    remedy="raise the limit (ulimit -n for fd), or find what uses so much",
                )
            )
    many = len(nodes)
    return found or [Finding(id="RM7", severity=OK, read=f"{many} nodes, no alarm")]


def _near(node: Mapping[str, Any]) -> list[str]:
    """What a node has used up but for a fifth. Not every version tells each of them."""
    used = {name: (f"{name}_used", f"{name}_total") for name in ("fd", "sockets", "proc")}
    used["memory"] = ("mem_used", "mem_limit")
    found = []
    for name, keys in used.items():
        part, whole = (node.get(key) for key in keys)
        if isinstance(part, int) and isinstance(whole, int) and part > whole * FULL > 0:
            found.append(f"{name} {part} of {whole}")
    free, least = node.get("disk_free"), node.get("disk_free_limit")
    if isinstance(free, int) and isinstance(least, int) and free < least / FULL:
        found.append(f"{free >> 20} MiB of disk, and below {least >> 20} it takes nothing")
    return found


def _security(facts: Mapping[str, Any], told: Mapping[str, Any]) -> list[Finding]:
    shown = f"as {facts['user']}, {'with' if facts['tls'] else 'without'} TLS"
    found = []
    if facts["user"] == "guest":
        means = "everybody knows that user and its password, and it may do anything"
        if not facts["local"]:
            shown += ", and not from this host: loopback_users lets it in from anywhere"
        remedy = "rabbitmqctl add_user, and permissions in one virtual host"
        found.append(_weak(shown, means, remedy))
    elif "administrator" in told.get("tags", ()):
        means = "whoever takes over this program owns the broker"
        remedy = f"rabbitmqctl set_user_tags {facts['user']} monitoring, or no tag"
        found.append(_weak(f"{shown}, an administrator", means, remedy))
    rights = told.get("permissions")
    wide = facts["any_name"] if rights is None else _is_wide(rights)
    if wide and facts["user"] != "guest":
        found.append(
            Finding(
                id="RM8",
                severity=NOTE,
                read=f"{facts['user']} may make queues of any name"
                + ("" if rights is None else f": configure {rights['configure']}"),
                means="and read, fill and delete those of others in this virtual host",
                remedy=f"rabbitmqctl set_permissions -p VHOST {facts['user']} {RIGHTS}",
            )
        )
    if facts["user"] != "guest" and _has_known_password(told.get("guest")):
        found.append(
            Finding(
                id="RM8",
                severity=NOTE,
                read="there is the user guest with the password guest",
                means="nothing but loopback_users keeps everybody else out",
                remedy="rabbitmqctl delete_user guest",
            )
        )
    if not facts["tls"] and not facts["local"]:
        found.append(
            Finding(
                id="RM8",
                severity=NOTE,
                read=shown,
                means="who listens on the way reads the jobs, and the password",
                remedy="amqps://, unless it is a network of your own",
            )
        )
    return found or [Finding(id="RM8", severity=OK, read=shown)]


def _weak(read: str, means: str, remedy: str) -> Finding:
    return Finding(id="RM8", severity=WARNING, read=read, means=means, remedy=remedy)


def _is_wide(rights: Mapping[str, str]) -> bool:
    """Whether a name that is none of ours fits."""
    try:
        return re.search(rights["configure"], "somebody") is not None
    except re.error:
        return False  # Erlang has other patterns


def _has_known_password(user: Mapping[str, Any] | None) -> bool:
    """Whether the broker keeps ``guest`` as this user's password: salted with its first 4 bytes."""
    if user is None or user.get("hashing_algorithm") != "rabbit_password_hashing_sha256":
        return False
    kept = base64.b64decode(user.get("password_hash", ""))
    return kept[4:] == hashlib.sha256(kept[:4] + b"guest").digest()


def _untold(id: str, told: Mapping[str, Any]) -> Finding:
    """What only the management API knows."""
    return Finding(
        id=id,
        severity=NOTE,
        read="the management API doesn't tell this user"
        if told
        else "the management API isn't there, or not for this user",
        means=f"{_ONLY_THERE[id]} can't be told over AMQP",
        remedy="the tag monitoring for the user"
        if told
        else "rabbitmq-plugins enable rabbitmq_management, the tag monitoring for the user, and"
        " ?management=http://host:15672 in the URL",
    )


_ONLY_THERE = {
    "RM3": "how many nodes hold each queue",
    "RM4": "what policies take away",
    "RM6": "what kind of queue is made by default",
    "RM7": "how short memory, disk and file descriptors are",
}
