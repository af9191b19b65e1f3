"""Celery's messages and results on Redis, in the layout that kombu and Celery have there."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from redis.asyncio import Redis
from redis.exceptions import RedisError

from outlast.chance import SystemChance
from outlast.contrib.celery.beside.carrier import Taken
from outlast.contrib.celery.beside.wire import Parcel, as_text, write
from outlast.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from outlast.contrib.celery.beside.canvas import Part, Result, Size
    from outlast.contrib.celery.beside.wire import Call

__all__ = ["RedisBackend", "RedisBroker"]

SEP = "\x06\x16"
STEPS = (0, 3, 6, 9)
MINE = "outlast"
CONTROL = "celery.pidbox"
REMEMBERED = 3600
"""Seconds for which the server remembers what was sent, so that a repeat changes nothing."""
DONE = 300
LISTEN = 1.0
"""Seconds of one wait for a broadcast: less than the client's own limit for an answer."""

_json = msgspec.json.Encoder().encode
_parse = msgspec.json.Decoder().decode


NOTE = """
local last = {SUCCESS = true, FAILURE = true, REVOKED = true, REJECTED = true, IGNORED = true}
for at, key in ipairs(KEYS) do
    local known = redis.call('GET', key)
    local fine, before = pcall(cjson.decode, known or '{}')
    if not (fine and type(before) == 'table' and last[before.status]) then
        redis.call('SET', key, ARGV[at + 1])
        if tonumber(ARGV[1]) > 0 then redis.call('EXPIRE', key, ARGV[1]) end
        redis.call('PUBLISH', key, ARGV[at + 1])
    end
end
"""


class _Envelope(Struct):
    body: Any
    headers: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    content_type: str | None = msgspec.field(name="content-type", default=None)
    content_encoding: str | None = msgspec.field(name="content-encoding", default=None)


_open = msgspec.json.Decoder(_Envelope).decode

# Popping and noting what was popped are one step, so that no crash comes between them. What is
# noted is what kombu notes, so its workers would restore it after their visibility timeout; ours
# take it over much sooner, and it never goes back to the queue, so nobody runs it meanwhile.
TAKE = """
local unacked, index, limit, stamp, stale = KEYS[1], KEYS[2], tonumber(ARGV[1]), ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local found = {}
if stale ~= '' then
    local old = redis.call('ZRANGEBYSCORE', index, '-inf', now - tonumber(stale), 'LIMIT', 0, 1000)
    for _, tag in ipairs(old) do
        if #found >= 2 * limit then break end
        if string.sub(tag, 1, 8) == 'outlast|' then
            local kept = redis.call('HGET', unacked, tag)
            if kept then
                redis.call('ZADD', index, now, tag)
                found[#found + 1] = tag
                found[#found + 1] = kept
            else
                redis.call('ZREM', index, tag)
            end
        end
    end
end
local count = #found / 2
for at = 3, #KEYS do
    while count < limit do
        local raw = redis.call('RPOP', KEYS[at])
        if not raw then break end
        local tag = 'outlast|' .. (at - 2) .. '|' .. stamp .. '|' .. count
        local place = ARGV[3 + at - 2]
        local kept = '[' .. raw .. ',"",' .. place .. ']'
        redis.call('HSET', unacked, tag, kept)
        redis.call('ZADD', index, now, tag)
        found[#found + 1] = tag
        found[#found + 1] = kept
        count = count + 1
    end
end
return found
"""

BACK = """
for at = 3, #ARGV, 2 do
    if redis.call('HDEL', KEYS[1], ARGV[at]) == 1 then
        redis.call('ZREM', KEYS[2], ARGV[at])
        redis.call('RPUSH', KEYS[3 + (at - 3) / 2], ARGV[at + 1])
    end
end
"""

# What could not be put into its queue must not be remembered as sent, nor keep others from it.
SEND = """
local refused = {}
for at = 1, #KEYS, 2 do
    if redis.call('SET', KEYS[at], '1', 'NX', 'EX', ARGV[1]) then
        local answer = redis.pcall('LPUSH', KEYS[at + 1], ARGV[1 + (at + 1) / 2])
        if type(answer) == 'table' and answer.err then
            redis.call('DEL', KEYS[at])
            refused[#refused + 1] = (at - 1) / 2
            refused[#refused + 1] = answer.err
        end
    end
end
return refused
"""

# Celery's own keys and its own claim on the end of a chord, so that its workers and ours can be
# members of one. A claim of ours is known by what it leads to, so a repeat finds it to be its own.
PART = """
local jkey, tkey, skey, dkey, ckey, shape = unpack(KEYS)
local tid, value, score, expires, hold, token = unpack(ARGV)
if redis.call('GET', ckey) == 'done' then return false end
local member = tid .. ':' .. score
if redis.call('SISMEMBER', dkey, member) == 0 then
    redis.call('ZADD', jkey, score, value)
    redis.call('SADD', dkey, member)
end
if tonumber(expires) > 0 then
    for _, key in ipairs({jkey, tkey, skey, dkey}) do redis.call('EXPIRE', key, expires) end
end
local size = redis.call('GET', skey)
local more = redis.call('GET', tkey) or 0
if not size or redis.call('ZCARD', jkey) ~= tonumber(size) + tonumber(more) then return false end
if redis.call('SET', ckey, token, 'NX', 'EX', hold) or redis.call('GET', ckey) == token then
    redis.call('EXPIRE', ckey, hold)
    return {redis.call('GET', shape), redis.call('ZRANGE', jkey, 0, -1)}
end
return false
"""

FINISH = """
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4])
redis.call('SET', KEYS[5], 'done', 'EX', ARGV[1])
"""


def _parcel(found: _Envelope) -> Parcel:
    return Parcel(
        body=found.body,
        content_type=found.content_type or "application/json",
        content_encoding=found.content_encoding or "utf-8",
        headers=found.headers,
        properties=found.properties,
    )


class _Link:
    """One client of a server, made when it is first needed."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.prefix = str(options.get("global_keyprefix") or "")
        try:
            self.redis: Redis = Redis.from_url(_ours(url))
        except ValueError as error:
            raise ConfigurationError(f"the URL of Celery's Redis can't be read: {error}") from None

    @contextmanager
    def mapped(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"Celery's Redis: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        await self.redis.aclose()


def _ours(url: str) -> str:
    """A URL as Celery has it, in the words of redis-py."""
    parts = urlsplit(url)
    words = {"CERT_REQUIRED": "required", "CERT_OPTIONAL": "optional", "CERT_NONE": "none"}
    query = [(name, words.get(value, value)) for name, value in parse_qsl(parts.query)]
    return urlunsplit(parts._replace(query=urlencode(query)))


class RedisBroker:
    """``options`` are Celery's ``broker_transport_options``, as far as they name keys."""

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._link = _Link(url, options)
        self._sep = str(options.get("sep", SEP))
        self._steps = tuple(sorted(options.get("priority_steps") or STEPS))
        prefix, redis = self._link.prefix, self._link.redis
        self._unacked = prefix + str(options.get("unacked_key", "unacked"))
        self._index = prefix + str(options.get("unacked_index_key", "unacked_index"))
        self._take = redis.register_script(TAKE)
        self._back = redis.register_script(BACK)
        self._send = redis.register_script(SEND)
        self._chance = SystemChance()
        self._turn = 0
        self._control = prefix + self._fanout(options.get("fanout_prefix", True)) + CONTROL

    def _fanout(self, given: Any) -> str:
        """What kombu begins the names of its broadcasts with."""
        if not given:
            return ""
        base = self._link.redis.connection_pool.connection_kwargs.get("db") or 0
        return str(given if isinstance(given, str) else "/{db}.").format(db=base)

    def priority(self, given: int | None) -> int:
        # On Redis the lowest number comes first.
        return -min(max(given or 0, 0), 9)

    async def take(
        self, queues: Sequence[str], limit: int, left: float | None = None
    ) -> Sequence[Taken]:
        self._turn += 1
        first = self._turn % len(queues)
        turned = [*queues[first:], *queues[:first]]
        places = [(self._key(queue, step), queue) for step in self._steps for queue in turned]
        stale = "" if left is None else str(left)
        keys = [self._unacked, self._index, *(key for key, _ in places)]
        stamp = self._chance.uuid7()
        told: list[Any] = [limit, stamp, stale, *(_json(queue) for _, queue in places)]
        with self._link.mapped():
            found = await self._take(keys=keys, args=told)
        return [
            self._taken(tag.decode(), kept, stamp)
            for tag, kept in zip(found[::2], found[1::2], strict=True)
        ]

    def _taken(self, tag: str, kept: bytes, stamp: str) -> Taken:
        again = stamp not in tag
        try:
            raw, _, queue = msgspec.json.decode(kept, type=tuple[msgspec.Raw, str, str])
            found = _open(raw)
        except (msgspec.MsgspecError, RecursionError):
            # What isn't JSON stands there as it came, before the queue's name.
            raw_bytes, _, last = kept[1:-1].rpartition(b',"",')
            queue = str(_parse(last))
            return Taken(tag=tag, raw=raw_bytes, queue=queue, parcel=None, again=again)
        delivery = found.properties.get("delivery_tag")
        return Taken(
            tag=tag, raw=bytes(raw), queue=queue, parcel=_parcel(found), again=again,
            delivery=delivery if isinstance(delivery, str) else None,
        )  # fmt: skip

    async def settle(self, taken: Sequence[Taken]) -> None:
        tags = [one.tag for one in taken]
        with self._link.mapped():
            async with self._link.redis.pipeline(transaction=True) as pipe:
                pipe.hdel(self._unacked, *tags)
                pipe.zrem(self._index, *tags)
                await pipe.execute()

    async def give_back(self, taken: Sequence[Taken]) -> None:
        keys = [self._unacked, self._index]
        told: list[Any] = ["", ""]
        # The last one first, since each goes to the head of its line.
        for one in reversed(taken):
            given = None if one.parcel is None else one.parcel.properties.get("priority")
            keys.append(self._place(one.queue, given))
            told += [one.tag, one.raw]
        with self._link.mapped():
            await self._back(keys=keys, args=told)

    async def send(self, calls: Sequence[Call]) -> Sequence[BaseException | None]:
        keys: list[str] = []
        told: list[Any] = [REMEMBERED]
        for call in calls:
            keys.append(f"{self._link.prefix}outlast:sent:{call.id}:{call.retries}")
            keys.append(self._place(call.queue, call.priority))
            told.append(self._sealed(call))
        with self._link.mapped():
            refused = await self._send(keys=keys, args=told)
        outcomes: list[BaseException | None] = [None] * len(calls)
        for at, why in zip(refused[::2], refused[1::2], strict=True):
            text = f"Celery's Redis: queue {calls[at].queue!r} takes nothing: {why.decode()}"
            outcomes[at] = StoreUnavailable(text)
        return outcomes

    def _sealed(self, call: Call) -> bytes:
        parcel = write(call)
        properties = parcel.properties | {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": call.queue},
            "delivery_tag": self._chance.uuid7(),
        }
        return _json(
            {
                "body": as_text(parcel.body),
                "content-encoding": parcel.content_encoding,
                "content-type": parcel.content_type,
                "headers": parcel.headers,
                "properties": properties,
            }
        )

    async def overhear(self, told: Callable[[Parcel], Awaitable[None]]) -> None:
        with self._link.mapped():
            async with self._link.redis.pubsub(ignore_subscribe_messages=True) as heard:
                await heard.subscribe(self._control)
                while True:
                    message = await heard.get_message(timeout=LISTEN)
                    if message is None:
                        continue
                    try:
                        found = _open(message["data"])
                    except msgspec.MsgspecError:
                        continue  # it is for others
                    await told(_parcel(found))

    def _place(self, queue: str, priority: Any) -> str:
        given = priority if isinstance(priority, int) else 0
        at = max(bisect_right(self._steps, min(max(given, 0), 9)) - 1, 0)
        return self._key(queue, self._steps[at])

    def _key(self, queue: str, step: int) -> str:
        return f"{self._link.prefix}{queue}{self._sep}{step}" if step else self._link.prefix + queue

    async def close(self) -> None:
        await self._link.close()


class RedisBackend:
    """``options`` are Celery's ``result_backend_transport_options``, as far as they name keys."""

    keeps_ends = True

    def __init__(self, url: str, expires: float, options: Mapping[str, Any]) -> None:
        self._link = _Link(url, options)
        self._expires = int(expires)
        self._part = self._link.redis.register_script(PART)
        self._finish = self._link.redis.register_script(FINISH)
        self._note = self._link.redis.register_script(NOTE)

    async def store(self, results: Sequence[Result], sizes: Sequence[Size]) -> None:
        with self._link.mapped():
            async with self._link.redis.pipeline(transaction=True) as pipe:
                for size in sizes:
                    pipe.delete(self._group(size.group, ".c"))
                    pipe.set(self._group(size.group, ".s"), size.count, ex=self._expires or None)
                    if size.shape is not None:
                        noted = _json({"result": size.shape})
                        pipe.set(self._group(size.group, ""), noted, ex=self._expires or None)
                for result in results:
                    key = self._key_of(result)
                    document = _json(result.document)
                    pipe.set(key, document, ex=self._expires or None)
                    pipe.publish(key, document)
                await pipe.execute()

    async def note(self, results: Sequence[Result]) -> None:
        told: list[Any] = [self._expires, *(_json(result.document) for result in results)]
        with self._link.mapped():
            await self._note(keys=[self._key_of(result) for result in results], args=told)

    async def part(self, part: Part) -> tuple[Sequence[Any], Any] | None:
        keys = [self._group(part.group, end) for end in (".j", ".t", ".s", ".d", ".c", "")]
        index = "+inf" if part.index is None else part.index
        value = _json([1, part.id, part.state, part.result])
        told = [part.id, value, index, self._expires, 60, f"{MINE}:{part.id}"]
        with self._link.mapped():
            found = await self._part(keys=keys, args=told)
        if found is None:
            return None
        noted = None if found[0] is None else _parse(found[0]).get("result")
        return [_parse(one) for one in found[1]], noted

    async def finish(self, group: str) -> None:
        keys = [self._group(group, end) for end in (".j", ".t", ".s", ".d", ".c")]
        with self._link.mapped():
            await self._finish(keys=keys, args=[DONE])

    def _key_of(self, result: Result) -> str:
        return f"{self._link.prefix}celery-task-meta-{result.id}"

    def _group(self, group: str, end: str) -> str:
        return f"{self._link.prefix}celery-taskset-meta-{group}{end}"

    async def close(self) -> None:
        await self._link.close()
