"""A disk with a volatile cache: which contents a power cut may leave behind."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from tests.proof.vfs import Op

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["MODES", "Disk", "Mode", "images", "lay_out"]

Mode = Literal["drop", "keep", "rand", "torn"]
MODES: tuple[Mode, ...] = get_args(Mode)
SECTOR, PAGE = 512, 4096


@dataclass(slots=True, eq=False)
class _Blob:
    """One file: what is on the platter, and what was written since the last sync."""

    solid: bytearray = field(default_factory=bytearray)
    loose: list[Op] = field(default_factory=list)
    cache: bytearray | None = None
    """What programs read, once that is more than the platter and the loose operations tell."""

    def do(self, op: Op) -> None:
        if op.kind == "sync":
            self._flush()
        elif op.kind == "badsync":
            self._flush_to_nowhere()
        else:
            self.loose.append(op)
            if self.cache is not None:
                _change(self.cache, op)

    def _flush(self) -> None:
        for op in self.loose:
            _change(self.solid, op)
            if self.cache is not None and op.kind == "write":
                # The whole page goes, with whatever else of it has not got there before.
                first = op.offset // PAGE * PAGE
                last = (op.offset + len(op.data) + PAGE - 1) // PAGE * PAGE
                page = bytes(self.cache[first:last])
                _change(self.solid, op._replace(offset=first, data=page))
        self.loose.clear()

    def _flush_to_nowhere(self) -> None:
        if self.cache is None:
            self.cache = bytearray(self.solid)
            for op in self.loose:
                _change(self.cache, op)
        self.loose.clear()


class Disk:
    """Follows operations one by one. Every file is synced for itself, and so is the folder.

    Stricter than ext4 in that a synced file can still lack its name: only a sync of the folder
    makes a creation or deletion last.
    """

    def __init__(self) -> None:
        self._solid: dict[str, _Blob] = {}
        self._loose: list[tuple[str, _Blob | None]] = []
        self._now: dict[str, _Blob] = {}

    def preload(self, name: str, data: bytes) -> None:
        """A file that was there, wholly on the platter, before the recording began."""
        self._solid[name] = self._now[name] = _Blob(bytearray(data))

    def apply(self, op: Op) -> None:
        if op.kind == "create":
            self._now[op.name] = blob = _Blob()
            self._loose.append((op.name, blob))
        elif op.kind == "delete":
            if self._now.pop(op.name, None) is not None:
                self._loose.append((op.name, None))
        elif op.kind == "syncdir":
            self._settle_names(op.name)
        elif op.name in self._now:
            self._now[op.name].do(op)

    def _settle_names(self, folder: str) -> None:
        rest = []
        for name, blob in self._loose:
            if os.path.dirname(name) == folder:
                _rename(self._solid, name, blob)
            else:
                rest.append((name, blob))
        self._loose = rest

    def after_cut(self, mode: Mode, dice: random.Random) -> dict[str, bytes]:
        """The files as they may be found when the power is back.

        ``drop``: nothing unsynced got there; ``keep``: all did; ``rand``: any subset of the
        operations; ``torn``: any subset of their 512-byte sectors.
        """
        names = dict(self._solid)
        for name, blob in self._loose:
            if mode == "keep" or (mode != "drop" and dice.random() < 0.5):
                _rename(names, name, blob)
        return {name: _contents(blob, mode, dice) for name, blob in names.items()}


def _rename(names: dict[str, _Blob], name: str, blob: _Blob | None) -> None:
    if blob is None:
        names.pop(name, None)
    else:
        names[name] = blob


def _contents(blob: _Blob, mode: Mode, dice: random.Random) -> bytes:
    if mode == "drop" or not blob.loose:
        return bytes(blob.solid)
    data = bytearray(blob.solid)
    for op in blob.loose:
        if mode == "torn" and op.kind == "write":
            _tear(data, op, dice)
        elif mode == "keep" or dice.random() < 0.5:
            _change(data, op)
    return bytes(data)


def _change(data: bytearray, op: Op) -> None:
    if op.kind == "truncate":
        _resize(data, op.offset)
    else:
        if len(data) < op.offset:
            _resize(data, op.offset)
        data[op.offset : op.offset + len(op.data)] = op.data


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _tear(data: bytearray, op: Op, dice: random.Random) -> None:
    """Write some of the sectors; one that is left out within the file's new size reads as zeros."""
    end = op.offset + len(op.data)
    at = op.offset
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        if dice.random() < 0.5:
            if len(data) < at:
                _resize(data, at)
            data[at:until] = op.data[at - op.offset : until - op.offset]
        at = until


def images(
    ops: Sequence[Op],
    points: Iterable[int],
    modes: Sequence[Mode],
    dice: random.Random,
    before: dict[str, bytes] | None = None,
) -> Iterator[tuple[int, Mode, dict[str, bytes]]]:
    """(operations done, mode, files) for a cut after each of these numbers of operations."""
    disk = Disk()
    for name, data in (before or {}).items():
        disk.preload(name, data)
    done = 0
    for point in sorted(points):
        for op in ops[done:point]:
            disk.apply(op)
        done = max(done, point)
        for mode in modes:
            yield point, mode, disk.after_cut(mode, dice)


def lay_out(files: dict[str, bytes], folder: Path) -> None:
    """Write the files found after a cut into a folder, names without their old folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    for name, data in files.items():
        (folder / os.path.basename(name)).write_bytes(data)
