"""What is asked of a server before it is trusted with jobs, and what may be promised there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from redis.exceptions import ResponseError

from outlast.errors import DurabilityError, SchemaMismatch, StoreUnavailable
from outlast.store import Durability
from outlast.stores.redis.address import Wish, ask
from outlast.stores.redis.safe import Wait, wait_of
from outlast.stores.redis.scripts import texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio.connection import AbstractConnection


__all__ = [
    "Server",
    "examine",
    "facts_of",
    "lack_of_replicas",
    "load",
    "prepare",
    "promise_of",
    "took_over",
]

OLDEST = (7, 0)
NOTHING = Wish()
SCHEMA = 2


class Server(Struct, frozen=True, kw_only=True):
    """What a server says of itself."""

    name: str
    run: str
    took_over: bool
    """From another, whose last writes it may lack."""
    durability: Durability
    why: str
    """What keeps it from a better class, and what to change; empty if nothing does."""
    wait: Wait | None = None
    """What must be waited for after a write."""


async def facts_of(connection: AbstractConnection) -> dict[str, str]:
    """The lines of INFO, and of the settings those that matter, where they may be read."""
    info = str(await ask(connection, "INFO"), errors="replace")
    pairs = (line.split(":", 1) for line in info.splitlines() if ":" in line)
    facts = dict(pairs)
    for name in ("appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite", "appendonly"):
        try:
            found = await ask(connection, "CONFIG", "GET", name)
        except ResponseError:
            continue  # renamed, or not allowed: what isn't known isn't promised
        if found:
            facts[name] = str(found[1], errors="replace")
    try:
        known = await ask(connection, "COMMAND", "INFO", "WAITAOF")
        # Valkey 8.1 said that it had synced what a power cut then took away (docs/redis.md).
        there = known and known[0] and "valkey_version" not in facts
        facts["waitaof"] = "1" if there else "0"
    except ResponseError:
        facts["waitaof"] = "0"
    facts.setdefault("maxmemory-policy", facts.get("maxmemory_policy", ""))
    return facts


def promise_of(facts: Mapping[str, str], wish: Wish = NOTHING) -> tuple[Durability, str]:
    """What an accepted job survives on a server with these facts, and what keeps it from more."""
    found, why = _alone(facts, wish)
    if found < Durability.POWER:
        return found, why
    if not wish.replicas:
        return found, "no replica is waited for: give the server one, and add replicas=1 to the URL"
    if lacking := lack_of_replicas(facts, wish):
        return found, lacking
    return Durability.REPLICA, ""


def lack_of_replicas(facts: Mapping[str, str], wish: Wish) -> str:
    """Empty if there are as many as are waited for."""
    many = int(facts.get("connected_slaves", 0))
    if many >= wish.replicas:
        return ""
    return (
        f"replicas={wish.replicas} is asked for, and {many} are connected: nothing could be"
        " acknowledged"
    )


def took_over(facts: Mapping[str, str]) -> bool:
    """Whether it was a replica once, in this run."""
    return bool(facts.get("master_replid2", "").strip("0"))


def _alone(facts: Mapping[str, str], wish: Wish) -> tuple[Durability, str]:
    """Without its replicas."""
    policy = facts.get("maxmemory-policy", "")
    if policy.startswith("allkeys-"):
        return Durability.MEMORY, (
            f"maxmemory-policy is {policy}, so it deletes jobs when memory is short: "
            "CONFIG SET maxmemory-policy noeviction"
        )
    if facts.get("aof_enabled") != "1":
        return Durability.MEMORY, (
            "it writes no append-only file (appendonly no), so its own end loses jobs: "
            "CONFIG SET appendonly yes, CONFIG SET appendfsync always, CONFIG REWRITE"
        )
    fsync, has = facts.get("appendfsync"), facts.get("waitaof") == "1"
    waits = wish.file and has and fsync in (None, "everysec")
    if waits and facts.get("no-appendfsync-on-rewrite") != "yes":
        return Durability.POWER, ""
    if fsync is None:
        return Durability.PROCESS, "it doesn't let its settings be read (CONFIG GET appendfsync)"
    if fsync != "always":
        return Durability.PROCESS, (
            f"appendfsync is {fsync}, so a power cut loses what came last: "
            f"CONFIG SET appendfsync always, CONFIG REWRITE{_or_wait(wish, has, fsync)}"
        )
    if facts.get("no-appendfsync-on-rewrite") == "yes":
        return Durability.PROCESS, (
            "no-appendfsync-on-rewrite is yes, so nothing is synced while the file is rewritten: "
            "CONFIG SET no-appendfsync-on-rewrite no, CONFIG REWRITE"
        )
    return Durability.POWER, ""


def _or_wait(wish: Wish, has: bool, fsync: str) -> str:
    if wish.file and not has:
        return " (ack=waitaof needs Redis 7.2 or later, and Valkey's is not relied on)"
    return "; or ack=waitaof in the URL" if has and fsync == "everysec" and not wish.file else ""


async def examine(
    connection: AbstractConnection, shown: str, prefix: str, required: Durability, wish: Wish
) -> Server:
    """Who serves this connection.

    Raises ``DurabilityError`` if it promises less than ``required``, ``StoreUnavailable`` for a
    replica, a server that is too old, or one that lacks the replicas that are to be waited for;
    and redis-py's ``MovedError`` where another node of a cluster, or its master, has the namespace.
    """
    facts = await facts_of(connection)
    if facts.get("cluster_enabled") == "1":
        await ask(connection, "EXISTS", prefix + "m")
    number = facts.get("redis_version", "0")
    name = f"Valkey {facts['valkey_version']}" if "valkey_version" in facts else f"Redis {number}"
    if tuple(int(part) for part in number.split(".")[:2] if part.isdecimal()) < OLDEST:
        raise StoreUnavailable(f"{shown} is {name}: outlast needs Redis 7.0 or Valkey")
    if facts.get("role") == "slave":
        raise StoreUnavailable(f"{shown} is a replica, which takes no writes: name the master")
    if facts.get("loading") == "1":
        raise StoreUnavailable(f"{shown} is still loading its data")
    found, why = promise_of(facts, wish)
    if found >= Durability.POWER and (lacking := lack_of_replicas(facts, wish)):
        raise StoreUnavailable(f"{shown} ({name}): {lacking}")
    if found < required:
        raise DurabilityError(
            f"{shown} ({name}) promises durability {found}, but {required} was asked for: {why};"
            f" or ask for less (?durability={found})"
        )
    return Server(
        name=name, run=facts.get("run_id", ""), took_over=took_over(facts), durability=found,
        why=why, wait=wait_of(facts, wish),
    )  # fmt: skip


async def prepare(
    connection: AbstractConnection, shown: str, prefix: str, run: str, *, create: bool
) -> None:
    """See that the namespace is there and ours. Raises ``SchemaMismatch``, ``StoreUnavailable``.

    Without ``create`` nothing is made, and a server on which there is no namespace at all refused.
    """
    key = prefix + "m"
    found: Any = await ask(connection, "HGET", key, "schema")
    if found is None:
        if not create:
            if await _is_used(connection):
                return
            raise StoreUnavailable(
                f"there is no store at {shown}; check the URL, or allow creating it"
                " (outlast migrate --create, or create=True)"
            )
        await ask(connection, "HSETNX", key, "run", run)
        await ask(connection, "HSETNX", key, "schema", SCHEMA)
    elif int(found) != SCHEMA:
        raise SchemaMismatch(
            f"{shown} has schema {int(found)} under the keys {prefix}*; this version knows {SCHEMA}"
        )


async def _is_used(connection: AbstractConnection) -> bool:
    try:
        return bool(await ask(connection, "EXISTS", "outlast:namespaces"))
    except ResponseError:
        return True  # another node of the cluster has that key


async def load(connection: AbstractConnection) -> None:
    """See that the server knows our scripts."""
    known = await ask(connection, "SCRIPT", "EXISTS", *texts())
    for there, text in zip(known, texts().values(), strict=True):
        if not there:
            await ask(connection, "SCRIPT", "LOAD", text)
