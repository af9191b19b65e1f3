"""Which rooms there are in this process, by the names in `memory://name`."""

from __future__ import annotations

import threading
from typing import ClassVar
from weakref import WeakValueDictionary

from outlast.stores.memory.room import Room

__all__ = ["House", "Registry"]


class House:
    """The rooms of one name, by namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._rooms: dict[str, Room] = {}

    def room(self, namespace: str) -> Room:
        return self._rooms.setdefault(namespace, Room())

    def rooms(self) -> list[tuple[str, Room]]:
        """All of them, by namespace in order."""
        return sorted(self._rooms.items())


class Registry:
    """Finds the house behind a URL. Nothing else in this package outlives its objects.

    A named house lives as long as the process, as a file would. One without a name gets one, so
    that a second handle can be opened by the first one's ``url``, and goes with its last handle.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _named: ClassVar[dict[str, House]] = {}
    _private: ClassVar[WeakValueDictionary[str, House]] = WeakValueDictionary()
    _count: ClassVar[int] = 0

    @classmethod
    def house(cls, name: str) -> House:
        """The house of that name, built if need be; without a name a new one."""
        with cls._lock:
            if not name:
                cls._count += 1
                name = f"private-{cls._count}"
                house = cls._private[name] = House(name)
                return house
            known = cls._private.get(name)
            return known or cls._named.setdefault(name, House(name))

    @classmethod
    def forget(cls, name: str) -> None:
        """Drop a named house; stores that are open on it keep theirs."""
        with cls._lock:
            cls._named.pop(name, None)
