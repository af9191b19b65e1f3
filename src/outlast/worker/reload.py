"""Finds out that a source file of the running program has changed."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Files"]

Stamp = tuple[int, int]
"""When a file was changed last, in nanoseconds, and its size. Zeros for one that is not there."""


class Files:
    """The files of the imported modules, each as it was just before it was loaded.

    What was imported before counts as it is when it is first seen. In between a file may change,
    or be written anew after an import that failed: that must not be missed, and so the import
    system's own look at a file (``SourceFileLoader.path_stats``) is listened to.
    """

    def __init__(self) -> None:
        self._seen: dict[str, Stamp] = {}
        self._more: set[str] = set()
        folders = sysconfig.get_paths()
        self._installed = tuple(folders[name] for name in ("stdlib", "purelib", "platlib"))
        self.changed = ""
        """The file that was found changed."""
        self._listen()

    def wait_for_change(self, period: float) -> bool:
        """Look every ``period`` seconds; returns True when there is something new."""
        never = threading.Event()
        while not self.look():
            never.wait(period)
        return True

    def look(self) -> bool:
        """Whether a file has changed, or is gone, since it was loaded or first seen."""
        for path in self._paths() | self._more:
            now = _stamp(path)
            if self._seen.setdefault(path, now) != now:
                self.changed = path
                return True
        return False

    def add_culprits(self, error: BaseException) -> None:
        """Watch the files that an import failed in, and the folder that may lack one."""
        self._more.add(os.getcwd())
        seen: BaseException | None = error
        while seen is not None:
            self._more.update(
                frame.f_code.co_filename for frame, _ in traceback.walk_tb(seen.__traceback__)
            )
            if isinstance(seen, SyntaxError) and seen.filename:
                self._more.add(seen.filename)
            seen = seen.__cause__ or seen.__context__

    def _listen(self) -> None:
        real, loaders = SourceFileLoader.path_stats, cast("Any", SourceFileLoader)

        def path_stats(loader: SourceFileLoader, path: str) -> Mapping[str, Any]:
            self._seen.setdefault(path, _stamp(path))
            return real(loader, path)

        loaders.path_stats = path_stats

    def _paths(self) -> set[str]:
        modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        return {
            path
            for path in modules
            if path is not None and path.endswith(".py") and not path.startswith(self._installed)
        }


def _stamp(path: str) -> Stamp:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
