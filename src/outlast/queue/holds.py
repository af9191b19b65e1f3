"""Who holds which item, so that ``task_done()`` settles the right one, or none.

``task_done()`` says that *an* item is done. If the asyncio task that calls it holds exactly one,
it is that one. A caller that holds none (a helper of the one that got the item) or several may mean
any of those that are held: such calls are only counted, and once the count covers all that is held,
all of it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outlast.queue.window import Entry

__all__ = ["Holds"]


class Holds:
    """The items that were handed out and are not done."""

    __slots__ = ("_by_owner", "_by_value", "counted", "size")

    def __init__(self) -> None:
        self._by_owner: dict[object, list[Entry]] = {}
        # Made when somebody first names an item, which most programs never do.
        self._by_value: dict[int, list[Entry]] | None = None
        self.size = 0
        """How many there are."""
        self.counted = 0
        """Calls of ``task_done()`` that could not be put down to one item yet."""

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entries in self._by_owner.values() for entry in entries)

    @property
    def covered(self) -> bool:
        """Whether each held item is known to be done."""
        return self.counted >= self.size

    @property
    def piled(self) -> bool:
        """Whether somebody took an item while holding another."""
        return any(len(entries) > 1 for entries in self._by_owner.values())

    def take(self, entry: Entry, owner: object) -> None:
        """Hand an item to an asyncio task, or to None where there is no task."""
        entry.owner = owner
        self.size += 1
        mine = self._by_owner.get(owner)
        if mine is None:
            self._by_owner[owner] = [entry]
        else:
            mine.append(entry)
        if self._by_value is not None:
            self._by_value.setdefault(id(entry.item), []).append(entry)

    def only(self) -> list[Entry]:
        """An anonymous call, while just one item is held: whoever calls, it is that one."""
        if self.size != 1 or self.counted:
            return []
        self.size = 0
        self._by_value = None
        return self._by_owner.popitem()[1]

    def done(self, owner: object) -> list[Entry]:
        """One anonymous call of ``task_done()``: the items that are done by it, if any."""
        mine = self._by_owner.get(owner)
        if mine is not None and len(mine) == 1:
            if self.counted or self._by_value is not None:
                return self.done_with(mine[0])
            # What the usual consumer does, item for item.
            del self._by_owner[owner]
            self.size -= 1
            return mine
        self.counted += 1
        return self._all_if_covered()

    def done_with(self, entry: Entry) -> list[Entry]:
        """This one is done, and perhaps with it all that is left."""
        self.release(entry)
        return [entry, *self._all_if_covered()] if self.counted else [entry]

    def find(self, owner: object, item: Any) -> Entry | None:
        """The entry that holds this item: the very object if it can be, else an equal one.

        Among several, one of the caller's own.
        """
        if self._by_value is None:
            self._by_value = {}
            for entry in self:
                self._by_value.setdefault(id(entry.item), []).append(entry)
        same = self._by_value.get(id(item)) or [
            entry for entry in self if entry.item is item or entry.item == item
        ]
        return next((entry for entry in same if entry.owner is owner), same[0] if same else None)

    def has(self, entry: Entry) -> bool:
        return entry in self._by_owner.get(entry.owner, ())

    def release(self, entry: Entry) -> None:
        """Forget an item that is held."""
        self.size -= 1
        _drop(self._by_owner, entry.owner, entry)
        if self._by_value is not None:
            _drop(self._by_value, id(entry.item), entry)

    def drain(self) -> list[Entry]:
        """Forget everything; what it was."""
        entries = list(self)
        self._by_owner.clear()
        self._by_value = None
        self.size = self.counted = 0
        return entries

    def _all_if_covered(self) -> list[Entry]:
        held = self.size
        if not held or self.counted < held:
            return []
        left = self.counted - held
        entries = self.drain()
        self.counted = left
        return entries


def _drop(table: dict[Any, list[Entry]], key: object, entry: Entry) -> None:
    entries = table[key]
    if len(entries) == 1:
        del table[key]
    else:
        entries.remove(entry)
