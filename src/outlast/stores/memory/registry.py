"""Which rooms there are in this process, by the names in `memory://name`."""

from __future__ import annotations

import threading
from typing import ClassVar
from weakref import WeakValueDictionary

from outlast.stores.memory.room import Room

__all__ = ["Registry"]


class Registry:
    """Finds the room behind a URL. Nothing else in this package outlives its objects.

    A named room lives as long as the process, as a file would. A room without a name gets one, so
    that a second handle can be opened by the first one's ``url``, and goes with its last handle.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _named: ClassVar[dict[tuple[str, str], Room]] = {}
    _private: ClassVar[WeakValueDictionary[tuple[str, str], Room]] = WeakValueDictionary()
    _count: ClassVar[int] = 0

    @classmethod
    def room(cls, name: str, namespace: str) -> tuple[str, Room]:
        """The room of that name, made if need be, and the name that it has."""
        with cls._lock:
            if not name:
                cls._count += 1
                name = f"private-{cls._count}"
                room = cls._private[name, namespace] = Room()
                return name, room
            found = cls._private.get((name, namespace)) or cls._named.get((name, namespace))
            if found is None:
                found = cls._named[name, namespace] = Room()
            return name, found

    @classmethod
    def forget(cls, name: str) -> None:
        """Drop a named room in every namespace; stores that are open on it keep theirs."""
        with cls._lock:
            for known in [known for known in cls._named if known[0] == name]:
                del cls._named[known]
