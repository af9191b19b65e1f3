"""Where worker processes keep their locks when the store is on a server: a folder of this host.

Only those on the same host see that a worker is dead; elsewhere its lease has to run out.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import stat
from pathlib import Path

__all__ = ["private_folder"]

_log = logging.getLogger(__name__)


def private_folder(*names: str) -> Path | None:
    """The folder for what has these names, made if need be; None if it can't be a private one."""
    import tempfile  # half a MiB, which a worker on SQLite does without

    base = Path(tempfile.gettempdir(), f"outlast-{os.getuid()}")
    # With the host's name: hosts may share the folder, but they see nothing of each other's locks.
    mark = "\0".join((socket.gethostname(), *names))
    folder = base / hashlib.sha256(mark.encode()).hexdigest()[:24]
    try:
        for each in (base, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            found = each.lstat()
            mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if not mine or stat.S_IMODE(found.st_mode) & 0o077:
                raise OSError(f"{each} is somebody else's, or open to others")
    except OSError as error:
        _log.warning("that a worker is dead will be seen late, by its lease: %s", error)
        return None
    return folder
