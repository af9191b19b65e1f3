"""Finds out that a source file of the running program has changed."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import traceback

__all__ = ["Files"]


class Files:
    """The files of the imported modules, and when each was changed last.

    Modules that are imported later are taken in as they come; only what changes after that counts.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._more: set[str] = set()
        folders = sysconfig.get_paths()
        self._installed = tuple(folders[name] for name in ("stdlib", "purelib", "platlib"))
        self.changed = ""
        """The file that was found changed."""

    def wait_for_change(self, period: float) -> bool:
        """Look every ``period`` seconds; returns True when there is something new."""
        never = threading.Event()
        while not self.look():
            never.wait(period)
        return True

    def look(self) -> bool:
        """Whether a file has changed, or is gone, since it was first seen."""
        for path in self._paths() | self._more:
            try:
                stamp = os.stat(path).st_mtime_ns
            except OSError:
                stamp = 0
            if self._seen.setdefault(path, stamp) != stamp:
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

    def _paths(self) -> set[str]:
        modules = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        return {
            path
            for path in modules
            if path is not None and path.endswith(".py") and not path.startswith(self._installed)
        }
