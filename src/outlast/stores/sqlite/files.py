"""The files of the SQLite store: where they may lie, who may read them, room for bad days."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from outlast.errors import (
    ConfigurationError,
    DurabilityError,
    StoreDamaged,
    StoreFull,
    StoreStopped,
    StoreUnavailable,
)
from outlast.lifeline import BALLAST as BALLAST_NAME
from outlast.store import Durability

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Ballast",
    "Identity",
    "companion",
    "file_system",
    "give_to_owner",
    "look",
    "make",
    "path_durability",
    "prepare_companion",
    "real",
    "refuse_foreign_log",
    "refuse_lost_log",
]

_log = logging.getLogger(__name__)

VOLATILE = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
NETWORK = frozenset(
    "nfs nfs4 cifs smb smb2 smb3 smbfs 9p afs ceph lustre gpfs virtiofs glusterfs fuse.sshfs"
    " fuse.glusterfs fuse.s3fs fuse.rclone davfs beegfs orangefs ocfs2 gfs2".split()
)
SMALLEST = 512
"""Bytes of the smallest database there is: one page of the smallest size."""
_FORMATS = 18
"""Where the header of a database says how it is written and read: 1 by a journal, 2 in WAL."""
MOUNTS = "/proc/self/mountinfo"
STAMPED = os.name == "posix"
"""Whether a folder's ``ctime`` is when it last changed: elsewhere it is when it was made."""
TICK = 10_000_000
"""Nanoseconds: stamps that are multiples of it are those of FAT and the like, too coarse for us."""
SETTLED = 5 * TICK
"""Nanoseconds after which the stamp of a folder can't be that of one more change as well."""
BALLAST = 10 << 20
"""Bytes of disk that are kept back so that a full disk still lets work be settled.

More than the log grows to before it is copied: the database must have room for what is in it.
"""


def companion(path: str) -> Path:
    """The folder beside the file for what isn't in it: lifelines, bells, ballast.

    Its name begins with a dot, so that ``rm jobs.db*`` meets files alone.
    """
    return Path(os.path.dirname(path), f".{os.path.basename(path)}-outlast")


def real(path: str) -> str:
    """The absolute path, its folder free of symbolic links; the file itself is left as named.

    Processes that come by different links then agree on where the log and the locks are.
    """
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def look(path: str, *, create: bool) -> bool:
    """Whether a plain file of ours stands at ``path``; nothing is made yet.

    Raises ``ConfigurationError`` for symlinks, files with several names, devices, files that belong
    to another user and folders that others may write to, and ``StoreUnavailable`` when the file is
    missing and may not be made. An empty file is as good as a missing one.
    """
    folder = os.path.dirname(path)
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        if not os.path.isdir(folder):
            raise ConfigurationError(f"the folder {folder} does not exist; make it first") from None
        if not create:
            raise _missing(path) from None
        _refuse_open_folder(folder)
        return False
    except NotADirectoryError:
        raise ConfigurationError(f"{folder} is not a folder") from None
    except OSError as error:
        raise StoreUnavailable(f"can't look at {path}: {error.strerror}") from error
    _look_at(path, found)
    if found.st_size == 0 and not create:
        raise _missing(path)
    return True


def _look_at(path: str, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise ConfigurationError(
            f"{path} is a symbolic link; name the real file {os.path.realpath(path)}, since SQLite"
            " keeps its write-ahead log beside the name it was given"
        )
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"{path} is not a plain file")
    _refuse_other_names(path, found)
    _refuse_open_folder(os.path.dirname(path))
    _refuse_foreign(path, found)
    if 0 < found.st_size < SMALLEST:
        # SQLite would take it for an empty one and make a new store of it.
        raise StoreDamaged(f"{path} is damaged or not a database ({found.st_size} bytes)")
    if not os.access(path, os.R_OK | os.W_OK):
        raise StoreUnavailable(f"{path} can't be read and written {_why_not(path)}")
    if found.st_size == 0 and _is_ours(found):
        # It held no secrets yet, and from now on it will.
        os.chmod(path, 0o600)


def _refuse_other_names(path: str, found: os.stat_result) -> None:
    """Each name would have a log of its own, and a checkpoint of one undoes what the other did."""
    if found.st_nlink > 1:
        raise ConfigurationError(
            f"{path} has {found.st_nlink} names (hard links), and SQLite keeps its write-ahead log"
            " beside the one it is given, so who came by another would overwrite what is stored by"
            f" this. Delete the others (find -samefile {path}); for a copy use outlast backup"
        )
    if any(point == path for point, _ in _mounts()):
        raise ConfigurationError(
            f"{path} is mounted by itself, and SQLite keeps its write-ahead log beside it, where"
            " another machine or container would not find it. Mount the folder that holds it"
        )


def tell_of_readers(path: str) -> None:
    """Warn if others may read a store. Only once it is known to be one: what to do is said too."""
    mode = os.lstat(path).st_mode
    if mode & 0o077:
        _log.warning("%s can be read by other users (mode %o); chmod 600 it", path, mode & 0o777)


def refuse_foreign_log(path: str) -> None:
    """Raise ``StoreDamaged`` if a copy of a store was put where the log of another file still lies.

    SQLite would take the log for the copy's own, and mix the pages of both. A backup is not in WAL
    mode until it is first opened, which is before it has a log.
    """
    # In this order: somebody else may be the first to open it at this very moment.
    try:
        logged = os.stat(f"{path}-wal").st_size
    except FileNotFoundError:
        return
    if not logged:
        return
    # By SQLite's own layer: had Python opened the file, its closing would drop all locks on it that
    # this process holds, those of other stores included.
    file = apsw.VFSFile("", path, [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0])
    try:
        formats = file.xRead(2, _FORMATS)
    finally:
        file.xClose()
    if formats == b"\x01\x01":
        raise StoreDamaged(
            f"{path}-wal is the log of another file than {path}, which is a copy; move {path}-wal"
            f" and {path}-shm away, and open it again. Nothing was changed"
        )


def refuse_lost_log(path: str) -> None:
    """Raise ``StoreUnavailable`` if the log was deleted, and its index left behind.

    SQLite makes the log first and deletes it last. Opened now, a new log would be read by an index
    that tells of the old one, which others may still write to: what they store would be lost.
    """
    for _ in range(5):
        # In this order, and again: others may open and close the store at this very moment.
        if not os.path.exists(f"{path}-shm") or os.path.exists(f"{path}-wal"):
            return
        time.sleep(0.01)
    raise StoreUnavailable(
        f"{path}-wal was deleted. Put it back, or end the programs that use the store: what they"
        f" stored is saved when the last one closes it. If all have crashed, what was in it is"
        f" lost; move {path}-shm away as well, to go on without it. Nothing was changed"
    )


def _missing(path: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"there is no store at {path}; check the URL, or allow creating it"
        " (outlast migrate --create, or create=True)"
    )


def prepare_companion(path: str) -> None:
    """Make the companion folder with mode 0700, or see that it is ours alone.

    Raises ``ConfigurationError`` if it is another's, ``StoreUnavailable`` if it can't be made.
    """
    folder = companion(path)
    try:
        folder.mkdir(mode=0o700)
        give_to_owner(folder, path)
        return
    except FileExistsError:
        found = os.lstat(folder)
    except OSError as error:
        raise _refused(folder, error) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigurationError(f"{folder} is not a folder, and outlast needs one there")
    _refuse_foreign(folder, found)
    if found.st_mode & 0o077 and _is_ours(found):
        os.chmod(folder, 0o700)


def _why_not(path: str) -> str:
    """What is in the way, and what to do about it."""
    if sys.platform != "win32" and os.statvfs(path).f_flag & os.ST_RDONLY:
        return "here: its file system is mounted read-only; mount it for writing, or move the file"
    return "by this user: run this as the user whose file it is, or chown it"


def _is_ours(found: os.stat_result) -> bool:
    return hasattr(os, "geteuid") and found.st_uid == os.geteuid()


def _refuse_foreign(path: str | Path, found: os.stat_result) -> None:
    """What another user made may have been put there to be read, or to be replaced."""
    if hasattr(os, "geteuid") and os.geteuid() not in (0, found.st_uid) and found.st_uid != 0:
        raise ConfigurationError(f"{path} belongs to another user (uid {found.st_uid})")


def give_to_owner(made: Path, store: Path | str) -> None:
    """When root looks into somebody's store, the owner must be able to go on using it."""
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        owner = os.stat(store)
        os.chown(made, owner.st_uid, owner.st_gid, follow_symlinks=False)


def make(path: str) -> None:
    """An empty file with mode 0600; its name survives a power cut."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise _refused(path, error) from error
    os.close(descriptor)
    sync_folder(os.path.dirname(path))


def _refused(path: str | Path, error: OSError) -> StoreUnavailable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StoreFull(f"no space left to make {path}")
    return StoreUnavailable(
        f"can't make {path}: {error.strerror}; outlast needs a folder in which it can write"
    )


def sync_folder(folder: str) -> None:
    """Make a new name in the folder survive a power cut, where the system can."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_open_folder(folder: str) -> None:
    mode = os.stat(folder).st_mode
    if sys.platform != "win32" and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        raise ConfigurationError(
            f"anyone may replace files in {folder} (mode {stat.S_IMODE(mode):o}); use a folder of"
            f" your own, or chmod o-w {folder}"
        )


def remove(path: str) -> None:
    """Delete a store that nobody uses, with all that stands beside it."""
    import shutil  # it brings the packers of archives along, which no worker needs

    for name in (path, f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    shutil.rmtree(companion(path), ignore_errors=True)


def file_system(path: str, mounts: str | None = None) -> str:
    """The type of the file system that holds ``path``, or "" where the system doesn't say.

    ``mounts`` is the text of proc's ``mountinfo``, if it isn't to be read from there.
    """
    best, kind = -1, ""
    place = os.path.realpath(path)
    for point, found in _mounts(mounts):
        inside = point == "/" or place == point or place.startswith(point + "/")
        # Of mounts over one another the last is the one in use.
        if inside and len(point) >= best:
            best, kind = len(point), found
    return kind


def _mounts(text: str | None = None) -> Iterator[tuple[str, str]]:
    """Where something is mounted, and of which type; nothing where the system doesn't say."""
    if text is None:
        try:
            with open(MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
                text = file.read()
        except OSError:
            return
    for line in text.splitlines():
        fields = line.split(" ")
        if "-" in fields:
            point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
            yield point, fields[fields.index("-") + 1]


def path_durability(path: str) -> tuple[Durability, str]:
    """The best that a store at ``path`` can give, and a sentence where there is something to say.

    Raises ``DurabilityError`` on network file systems, where WAL's shared memory does not work.
    """
    kind = file_system(os.path.dirname(path))
    if kind in NETWORK:
        raise DurabilityError(
            f"{path} is on a network file system ({kind}), where SQLite's shared memory and locks"
            " don't hold; use a local disk"
        )
    if kind in VOLATILE:
        return Durability.PROCESS, f"{path} is on {kind}, which is gone when the machine stops"
    if kind == "fuse" or kind.startswith("fuse."):
        return Durability.PROCESS, f"{path} is on {kind}, and nobody vouches for what that syncs"
    if kind == "overlay":
        return (
            Durability.POWER,
            f"{path} is in a container's own layer (overlay): it is gone when the container is"
            " removed; mount a volume",
        )
    return Durability.POWER, ""


class Identity:
    """Which files these are, to notice when someone deletes or replaces them under us.

    A log or an index of it that was taken away is as bad as a missing database: SQLite goes on
    writing into what no other process will ever find.
    """

    __slots__ = ("_folder", "_known", "_names", "_stamp", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._folder = os.path.dirname(path)
        self._stamp: tuple[int, int, int] | None = None
        self._names = (path, f"{path}-wal", f"{path}-shm", str(companion(path)))
        self._known: dict[str, tuple[int, int]] = {}

    def learn(self) -> None:
        """Take the files for ours as they are, once a connection holds them all open."""
        for name in self._names:
            with contextlib.suppress(FileNotFoundError):
                found = os.stat(name)
                self._known[name] = (found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raise ``StoreStopped`` if one of them is not the file that we opened."""
        for name, known in self._known.items():
            try:
                found = os.stat(name)
            except FileNotFoundError:
                raise self._gone(name, "deleted") from None
            except OSError as error:
                raise StoreUnavailable(f"can't look at {name}: {error.strerror}") from error
            if (found.st_dev, found.st_ino) != known:
                raise self._gone(name, "replaced")

    def look(self) -> None:
        """``check``, at a quarter of its cost while their folder has not changed since the last.

        All of them stand in one folder, which bears a new stamp when a name in it comes or goes.
        """
        seen = self._stamped()
        if seen is None or seen != self._stamp:
            self.check()
            # Taken before they were looked at, so that it tells of whatever happened meanwhile.
            self._stamp = seen

    def _stamped(self) -> tuple[int, int, int] | None:
        """Which folder that is and when it last changed; None if that would not show the next."""
        if not STAMPED:
            return None
        try:
            found = os.stat(self._folder)
        except OSError:
            return None
        changed = found.st_ctime_ns
        # Two changes within one tick bear the same stamp.
        if changed % TICK == 0 or time.time_ns() - changed < SETTLED:
            return None
        return found.st_dev, found.st_ino, changed

    def _gone(self, name: str, how: str) -> StoreStopped:
        return StoreStopped(
            f"{name} was {how} while it was in use; nothing is made in its place. Put back what"
            " was there, or restart on purpose with a new file"
        )


class Ballast:
    """A file of zeros that is given up when the disk is full, so that settling can go on.

    While it is gone, new work is refused: see ``room``.
    """

    __slots__ = ("_path", "_size")

    def __init__(self, folder: Path, size: int = BALLAST) -> None:
        self._path = folder / BALLAST_NAME
        self._size = size

    def keep(self) -> bool:
        """Make the ballast if it isn't there; False when there is no room for it.

        Raises ``StoreUnavailable`` if it can't be made for another reason.
        """
        try:
            if self._path.stat().st_size == self._size:
                return True
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, self._size)
                else:
                    os.write(descriptor, bytes(self._size))
                os.ftruncate(descriptor, self._size)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise StoreUnavailable(f"can't write {self._path}: {error.strerror}") from error
            self.drop()
            return False
        return True

    def drop(self) -> bool:
        """Give the space up; True if there was any."""
        try:
            self._path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            _log.warning("can't give up %s: %s", self._path, error.strerror)
            return False
        return True

    def is_needed(self) -> bool:
        """Whether so little is free that a ballast would not fit, or would leave hardly any."""
        if not hasattr(os, "statvfs"):
            return False
        found = os.statvfs(self._path.parent.parent)
        return found.f_bavail * found.f_frsize < self._size + (1 << 20)

    def room(self, pending: int) -> bool:
        """Whether there is space for new work: the ballast stands and as much again is free.

        ``pending`` are the bytes of the log that the database is still to grow by, at most.
        Raises ``StoreUnavailable`` if it can't be made for another reason.
        """
        if hasattr(os, "statvfs"):
            try:
                found = os.statvfs(self._path.parent)
            except FileNotFoundError:
                return True  # the folder was taken away: whoever looks at our files will tell
            if found.f_bavail * found.f_frsize < self._size + pending:
                return False
        return self.keep()
