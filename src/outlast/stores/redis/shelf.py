"""A shelf beside the jobs of one namespace: small values by key, which may pass away in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from outlast.stores.redis.op import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from outlast.stores.redis.op import Arg
    from outlast.stores.redis.store import RedisStore

__all__ = ["RedisShelf"]

T = TypeVar("T")


class RedisShelf:
    """As ``SqliteShelf``; times are by the server's clock.

    Counting without ``once`` is not repeated by itself when an answer is lost, since it may have
    been done: that raises ``StoreUnavailable``.
    """

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def put(self, values: Mapping[str, bytes], ttl: float | None = None) -> None:
        """Store all of these or none, in place of what has these keys."""
        self._do(_nothing, "put", _life(ttl), *(part for pair in values.items() for part in pair))

    def count(self, key: str, ttl: float | None = None, once: str | None = None) -> int:
        """One more than the last time, from 1 on; the same number is never answered twice.

        Under the key ``once`` the number is kept, and answered again to whoever repeats it.
        """
        last = () if once is None else (once,)
        return self._do(int, "count", key, _life(ttl), *last, repeatable=once is not None)

    def keep(self, keys: Sequence[str], ttl: float | None) -> None:
        """Let those that are still there, and would pass away, last from now on for ``ttl``."""
        if keys:
            self._do(_nothing, "keep", _life(ttl), *keys)

    def drop(self, keys: Sequence[str]) -> None:
        """Delete what has these keys."""
        if keys:
            self._do(_nothing, "drop", *keys)

    def tidy(self, limit: int) -> list[str]:
        """Delete at most so many values whose time is over; their keys."""
        return self._do(_texts, "tidy", limit)

    def get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values, aligned with the keys."""
        return self._do(list, "get", *keys) if keys else []

    def starting(self, prefix: str) -> dict[str, bytes]:
        """All values whose keys begin so, in order; many are read piece by piece."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        found: dict[str, bytes] = {}
        begin: str | None = f"[{prefix}"
        while begin is not None:
            last, *flat = self._do(list, "starting", begin, f"({end}")
            found |= zip(_texts(flat[::2]), flat[1::2], strict=True)
            begin = f"({last.decode()}" if last else None
        return found

    def _do(self, parse: Callable[[Any], T], *args: Arg, repeatable: bool = True) -> T:
        op: Op[T] = Op("shelf", args, parse, repeatable=repeatable)
        return self._store._hand_over(op).result()


def _life(ttl: float | None) -> str:
    return "" if ttl is None else repr(float(ttl))


def _texts(raw: Sequence[bytes]) -> list[str]:
    return [each.decode() for each in raw]


def _nothing(_: Any) -> None:
    """These answer nothing."""
