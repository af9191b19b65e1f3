"""The examination of a Redis or Valkey server: checks RD1 to RD9, and what waits in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, cast

from redis.asyncio.connection import SSLConnection
from redis.exceptions import MovedError, RedisError, ResponseError

from outlast.clock import SystemClock
from outlast.doctor.report import Finding, Report, Severity
from outlast.doctor.waiting import waiting
from outlast.errors import OutlastError, StoreUnavailable
from outlast.store import Durability
from outlast.stores import connect
from outlast.stores.redis.address import ANSWERS_WITHIN, ask, dial, read
from outlast.stores.redis.faults import mapped
from outlast.stores.redis.opening import NOTHING, facts_of, lack_of_replicas, promise_of, took_over

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redis.asyncio.connection import AbstractConnection

    from outlast.store import Ledger
    from outlast.stores.redis.address import Address as Place
    from outlast.stores.redis.address import Wish
    from outlast.stores.urls import Address

__all__ = ["examine", "findings_of", "is_bare"]

OK, NOTE, WARNING, ERROR = Severity
DEFAULT = "default"
NAMESPACES = 100
"""As many are looked at, if there are more."""
LATELY = 24.0
"""Hours for which it is worth saying that the server was started again."""
TRY_FOR = 5000
"""Milliseconds that a server has to sync one write."""
_MORE = (
    *("save", "dir", "maxmemory", "min-replicas-to-write", "requirepass", "protected-mode"),
    "aof-load-truncated",
)
_KEPT = ("appendonly", "appendfsync", "maxmemory-policy", "no-appendfsync-on-rewrite")
_FIXED = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2, (8, 6): 3}
_FIXED_VALKEY = {(7, 2): 11, (8, 0): 6, (8, 1): 4}
"""Of each series the first version without the hole in Lua that lets a user run any code:
CVE-2025-49844, and in 8.6 CVE-2026-23631."""
_GOOD = "min_slaves_good_slaves"
"""What INFO calls the replicas that keep up; it tells of them while a number is asked for."""
_HERE = ("localhost", "::1")


async def examine(address: Address, *, required: Durability | None, quick: bool) -> Report:
    """See :func:`outlast.doctor.examine`."""
    promised = Durability.POWER if address.durability is None else address.durability
    wanted = promised if required is None else required
    place = read(address.path)
    try:
        async with asyncio.timeout(ANSWERS_WITHIN):
            facts = await _facts(place)
        findings = findings_of(facts, place.wish)
        if not quick:
            findings += await _waiting(address.path)
    except (RedisError, OSError, OutlastError) as error:
        ours = error if isinstance(error, OutlastError) else mapped(error, place.shown)
        finding = Finding(
            id="RD0", severity=ERROR, read=str(ours), means="the store can't be used as it is",
            remedy="mend that first, and look again",
        )  # fmt: skip
        return Report(url=place.shown, required=wanted, findings=(finding,), reached=False)
    return Report(url=place.shown, required=wanted, findings=tuple(findings))


async def _facts(place: Place) -> dict[str, str]:
    """Of the server itself; in a cluster, of the node that has the default namespace."""
    connection = await dial(place)
    try:
        facts = await facts_of(connection)
        if facts.get("cluster_enabled") == "1":
            try:
                await ask(connection, "EXISTS", f"{{outlast:{DEFAULT}}}m")
            except MovedError as moved:
                await connection.disconnect()
                connection = await dial(place, (moved.host, moved.port))
                facts = await facts_of(connection)
        for name in _MORE:
            facts.update(await _setting(connection, name))
        facts["bare"] = "1" if is_bare(place) else ""
        facts["whoami"] = await _who(connection)
        facts.update(await _tried(connection, facts))
        facts.update(await _runs(connection, facts))
    finally:
        await connection.disconnect()
    return facts


def is_bare(place: Place) -> bool:
    """Whether what is said to the server can be heard on the way to it."""
    host = str(place.settings.get("host", "localhost"))
    here = host in _HERE or host.startswith("127.") or "path" in place.settings
    return not here and place.settings.get("connection_class") is not SSLConnection


async def _setting(connection: AbstractConnection, name: str) -> dict[str, str]:
    try:
        found = await ask(connection, "CONFIG", "GET", name)
    except ResponseError:
        return {}
    return {name: str(found[1], errors="replace")} if found else {}


async def _who(connection: AbstractConnection) -> str:
    try:
        return str(await ask(connection, "ACL", "WHOAMI"), errors="replace")
    except ResponseError:
        return ""


async def _runs(connection: AbstractConnection, facts: Mapping[str, str]) -> dict[str, str]:
    """Whether the workers of some namespaces have seen this run of the server; and since when."""
    found = {}
    try:
        # In a cluster that key is elsewhere.
        names = await ask(connection, "SRANDMEMBER", "outlast:namespaces", NAMESPACES)
        for name in names or [DEFAULT.encode()]:
            run, since = await ask(connection, "HMGET", b"{outlast:%b}m" % name, "run", "since")
            if run is not None and run.decode() != facts.get("run_id"):
                found["unseen"] = "1"
            elif since is not None:
                found["since"] = max(found.get("since", ""), since.decode())
        found["time"] = (await ask(connection, "TIME"))[0].decode()
    except ResponseError:
        return {}
    return found


async def _tried(connection: AbstractConnection, facts: Mapping[str, str]) -> dict[str, str]:
    """How long a write takes to be synced, as the server says; its key is gone afterwards."""
    if facts.get("waitaof") != "1" or facts.get("aof_enabled") != "1":
        return {}
    clock, key = SystemClock(), "{outlast:doctor}probe"
    try:
        await ask(connection, "SET", key, "", "PX", 60_000)
        began = clock.monotonic()
        synced = await ask(connection, "WAITAOF", 1, 0, TRY_FOR)
        took = clock.monotonic() - began
        await ask(connection, "DEL", key)
    except ResponseError as error:
        return {"tried": f"WAITAOF was tried: {error}"}
    if synced[0] >= 1:
        return {"tried": f"WAITAOF was tried: synced after {took:.3f} s", "synced": "1"}
    return {"tried": f"WAITAOF was tried: not synced within {took:.0f} s", "synced": "0"}


def findings_of(facts: Mapping[str, str], asked: Wish | None) -> list[Finding]:
    """What the lines of INFO and the settings of a server mean.

    Without ``asked`` it is not a store of outlast's, which could wait for more.
    """
    wish = asked or NOTHING
    return [
        _file(facts),
        _sync(facts, wish),
        *_torn(facts),
        *([] if asked is None else [_waits(facts, wish)]),
        _eviction(facts),
        _replicas(facts, wish, asked is not None),
        _run(facts, wish),
        *_security(facts),
        _speed(facts),
        _kept_settings(facts),
    ]


def _file(facts: Mapping[str, str]) -> Finding:
    on = facts.get("aof_enabled") == "1"
    names = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    failed = [f"{name} {facts[name]}" for name in names if facts.get(name, "ok") != "ok"]
    shown = f"append-only file {'on' if on else 'off'}, snapshots {facts.get('save') or 'off'}"
    if place := facts.get("dir"):
        shown += f", in {place}"
    if not on:
        if {"time", "rdb_last_save_time"} <= facts.keys():
            ago = float(facts["time"]) - float(facts["rdb_last_save_time"])
            shown += f", the last one {max(0.0, ago):.0f} s ago"
        return Finding(
            id="RD1", severity=ERROR, read=shown, durability=Durability.MEMORY,
            means="what came after the last snapshot dies with the server",
            remedy="CONFIG SET appendonly yes, and CONFIG REWRITE",
        )  # fmt: skip
    if failed:
        return Finding(
            id="RD1", severity=ERROR, read=f"{shown}; {', '.join(failed)}",
            durability=Durability.MEMORY, means="the server could not write to its disk",
            remedy="look at the server's log and at the room on its disk",
        )  # fmt: skip
    return Finding(id="RD1", severity=OK, read=shown)


def _sync(facts: Mapping[str, str], wish: Wish) -> Finding:
    found, why = promise_of(facts, wish)
    fsync = facts.get("appendfsync", "can't be read")
    if found >= Durability.POWER:
        shown = f"appendfsync {fsync}"
        if fsync != "always":
            shown += ", and each write is waited for (ack=waitaof)"
        return Finding(id="RD2", severity=OK, read=shown, durability=found)
    means = "a power cut loses what was acknowledged last: up to half a minute of it"
    if fsync == "everysec":
        means = (
            "a power cut loses what was acknowledged last: up to two seconds of it; and so does the"
            " server's end, if it is killed while a sync takes long (RD8 counts those)"
        )
    return Finding(
        id="RD2", severity=WARNING, read=f"appendfsync {fsync}", durability=found, means=means,
        remedy=why,
    )  # fmt: skip


def _torn(facts: Mapping[str, str]) -> list[Finding]:
    """Whether a file whose end was torn by a power cut keeps the server from starting."""
    if facts.get("aof-load-truncated") != "no" or facts.get("aof_enabled") != "1":
        return []
    return [
        Finding(
            id="RD2",
            severity=NOTE,
            read="aof-load-truncated no",
            means="after a power cut the server may not start before its file is mended by hand",
            remedy="CONFIG SET aof-load-truncated yes, and CONFIG REWRITE; or know redis-check-aof",
        )
    ]


def _waits(facts: Mapping[str, str], wish: Wish) -> Finding:
    has, fsync = facts.get("waitaof") == "1", facts.get("appendfsync")
    shown = facts.get("tried") or (
        "WAITAOF is there" if has else "no WAITAOF to rely on (Redis 7.2)"
    )
    if has and wish.file and fsync != "always" and facts.get("synced") == "0":
        return Finding(
            id="RD3", severity=ERROR, read=shown, durability=Durability.PROCESS,
            means="with ack=waitaof nothing could be acknowledged",
            remedy="look at the server's disk, and at its log",
        )  # fmt: skip
    if wish.file and not has:
        return Finding(
            id="RD3", severity=WARNING, read=shown, means="ack=waitaof changes nothing here",
            remedy="CONFIG SET appendfsync always, and CONFIG REWRITE",
        )  # fmt: skip
    if has and fsync == "everysec" and not wish.file:
        return Finding(
            id="RD3", severity=NOTE, read=shown,
            means="with ack=waitaof in the URL an acknowledged job survives a power cut here, too",
        )  # fmt: skip
    return Finding(id="RD3", severity=OK, read=shown)


def _eviction(facts: Mapping[str, str]) -> Finding:
    policy = facts.get("maxmemory-policy", "")
    used, limit = int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0))
    evicted = int(facts.get("evicted_keys", 0))
    shown = f"maxmemory-policy {policy}, {used >> 20} MiB used" + (
        f" of {limit >> 20} MiB" if limit else ", no maxmemory"
    )
    if policy.startswith("allkeys-"):
        return Finding(
            id="RD4", severity=ERROR, read=shown, durability=Durability.MEMORY,
            means="the server deletes jobs when its memory is full",
            remedy="CONFIG SET maxmemory-policy noeviction, and CONFIG REWRITE",
        )  # fmt: skip
    if evicted:
        return Finding(
            id="RD4", severity=WARNING, read=f"{shown}; {evicted} keys were evicted",
            means="the server has deleted keys of somebody",
            remedy="give the jobs a server of their own",
        )  # fmt: skip
    if limit and used > 0.8 * limit:
        return Finding(
            id="RD4", severity=WARNING, read=shown, means="soon nothing more can be accepted",
            remedy="raise maxmemory, or keep finished jobs for less long",
        )  # fmt: skip
    return Finding(id="RD4", severity=OK, read=shown)


def _replicas(facts: Mapping[str, str], wish: Wish, ours: bool) -> Finding:
    role, many = facts.get("role", "?"), int(facts.get("connected_slaves", 0))
    if role == "slave":
        return Finding(
            id="RD5", severity=ERROR, read="this is a replica", durability=Durability.MEMORY,
            means="it takes no writes", remedy="name the master in the URL",
        )  # fmt: skip
    shown = f"{role} with {many} replica{'' if many == 1 else 's'}"
    if lacking := lack_of_replicas(facts, wish):
        return Finding(
            id="RD5", severity=ERROR, read=shown, means=lacking, durability=Durability.POWER,
            remedy="see to the replicas, or ask for fewer",
        )  # fmt: skip
    least, good = (int(facts.get(n) or 0) for n in ("min-replicas-to-write", _GOOD))
    if good < least:
        return Finding(
            id="RD5", severity=ERROR, durability=Durability.POWER,
            read=f"{shown}; min-replicas-to-write {least}, and {good} of them keep up",
            means="the server takes no writes: nothing is accepted, claimed or done",
            remedy="see to the replicas, or CONFIG SET min-replicas-to-write",
        )  # fmt: skip
    if many > wish.replicas:
        more = f"add replicas={many} to the URL; " if ours else ""
        return Finding(
            id="RD5", severity=NOTE, read=f"{shown}; waited for: {wish.replicas}",
            means="a failover to one that lags behind loses what was acknowledged last",
            remedy=f"{more}after a failover, compare what your program remembers with what is"
            " stored",
        )  # fmt: skip
    if many:
        return Finding(id="RD5", severity=OK, read=f"{shown}, all of them waited for")
    return Finding(id="RD5", severity=OK, read=f"{role}, no replicas")


def _run(facts: Mapping[str, str], wish: Wish) -> Finding:
    """Whether another run of the server, or another server, has the jobs since a short while."""
    hours = int(facts.get("uptime_in_seconds", 0)) / 3600
    shown = f"run {facts.get('run_id', '')[:12]}, up for {hours:.1f} hours"
    if facts.get("unseen"):
        shown += ", which no worker has seen yet"
    elif since := facts.get("since"):
        ago = max(0.0, float(facts["time"]) - float(since)) / 3600
        shown += f", first seen by workers {ago:.1f} hours ago"
        if ago > LATELY:
            return Finding(id="RD6", severity=OK, read=shown)
    else:
        return Finding(id="RD6", severity=OK, read=shown)
    found, _ = promise_of(facts, wish)
    # Without an append-only file a restart leaves that trace, too.
    other = facts.get("aof_enabled") == "1" and took_over(facts)
    if found >= (Durability.REPLICA if other else Durability.POWER):
        return Finding(
            id="RD6", severity=NOTE, read=shown,
            means="the server was started again, or another took over: nothing that was"
            " acknowledged is lost by that, and each lease runs once more in full",
        )  # fmt: skip
    return Finding(
        id="RD6", severity=WARNING, read=shown,
        means="another server has given way to this one: what it had acknowledged last may be"
        " missing" if other else
        "the server was started again: what it had acknowledged last may be missing",
        remedy="compare what your program remembers with what is stored (outlast jobs)",
    )  # fmt: skip


def _security(facts: Mapping[str, str]) -> list[Finding]:
    valkey = facts.get("valkey_version")
    name = valkey or facts.get("redis_version", "?")
    shown = f"{facts.get('redis_mode', 'standalone')}, version {name}, as {facts.get('whoami')}"
    found = []
    if facts.get("whoami") == "default" and facts.get("requirepass") == "":
        open_to_all = facts.get("protected-mode") == "no"
        found.append(
            Finding(
                id="RD7",
                severity=WARNING,
                read=f"{shown}, without a password" + ", protected-mode no" * open_to_all,
                means="whoever reaches the port can read, forge and delete jobs"
                + ("; and from any host, as far as it listens there" if open_to_all else ""),
                remedy="CONFIG SET requirepass, or a user of its own (ACL)",
            )
        )
    if facts.get("bare"):
        found.append(
            Finding(
                id="RD7",
                severity=NOTE,
                read=f"{shown}, without TLS",
                means="who listens on the way reads the jobs, and the password",
                remedy="rediss://, unless it is a network of your own",
            )
        )
    number = _version(name)
    fixed = (_FIXED_VALKEY if valkey else _FIXED).get(number[:2])
    if (not valkey and number[:2] == (7, 0)) or (fixed is not None and number[2] < fixed):
        hole = "CVE-2026-23631" if number[:2] == (8, 6) else "CVE-2025-49844"
        found.append(
            Finding(
                id="RD7",
                severity=NOTE,
                read=f"{'Valkey' if valkey else 'Redis'} {name}",
                means=f"in this version {hole} (Lua) is only mended by a distribution",
                remedy="take a newer version, or see that the package was mended",
            )
        )
    return found or [Finding(id="RD7", severity=OK, read=shown)]


def _speed(facts: Mapping[str, str]) -> Finding:
    late = int(facts.get("aof_delayed_fsync", 0))
    fork = int(facts.get("latest_fork_usec", 0)) / 1e6
    shown = f"{late} delayed syncs, {fork:.3f} s for the last fork"
    if late or fork > 1.0:
        return Finding(
            id="RD8", severity=WARNING, read=shown,
            means="the disk, or the memory, is too slow for this server" + (
                "; whoever had killed it in a delayed sync had taken up to two seconds of"
                " acknowledged jobs with it"
                if late and facts.get("appendfsync") == "everysec" else ""
            ),
            remedy="look at LATENCY DOCTOR; keep the file on a disk of its own",
        )  # fmt: skip
    return Finding(id="RD8", severity=OK, read=shown)


def _kept_settings(facts: Mapping[str, str]) -> Finding:
    path = facts.get("config_file", "")
    if not path:
        return Finding(
            id="RD9", severity=NOTE, read="the server was started without a configuration file",
            means="what was set by CONFIG SET is gone after a restart",
            remedy="give the settings where the server is started",
        )  # fmt: skip
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return Finding(id="RD9", severity=NOTE, read=f"{path} can't be read from here")
    words = [line.split() for line in lines]
    written = {each[0]: each[1].strip("\"'") for each in words if len(each) == 2}
    other = [f"{n} {written.get(n)}" for n in _KEPT if written.get(n, facts.get(n)) != facts.get(n)]
    if other:
        return Finding(
            id="RD9", severity=WARNING, read=f"{path} says {', '.join(other)}",
            means="the running server has other settings, which a restart takes away",
            remedy="CONFIG REWRITE",
        )  # fmt: skip
    return Finding(id="RD9", severity=OK, read=f"{path} says the same")


def _version(name: str) -> tuple[int, int, int]:
    parts = [int(part) for part in name.split(".") if part.isdecimal()]
    parts += [0, 0, 0]
    return parts[0], parts[1], parts[2]


async def _waiting(url: str) -> list[Finding]:
    """In the default namespace."""
    store = connect(url, durability=Durability.MEMORY, create=False)
    try:
        await store.open()
    except StoreUnavailable as error:
        return [Finding(id="RD0", severity=NOTE, read=str(error))]
    try:
        return await waiting(cast("Ledger", store))
    finally:
        await store.close()
