"""Files as a follower sees them: what they are known by, how they are read, and where a lost one may be.

Rule: a name says nothing about a log file, because rotation gives it to another one. A file is known by its
device and inode and by digests of bytes that were read from it: the first ones, and the last ones before the
position. Bytes that were once read do not change in a log; where they did, it is another file, or the same
one emptied and written again (copytruncate), even if it has grown beyond the position since.

Why the last bytes too and not only the first: logs may begin with the same line each time.

>>> family_of("/var/log/apache2/access.log.2.gz"), family_of("/var/log/apache2/access.log-20260131")
(('/var/log/apache2', 'access.log'), ('/var/log/apache2', 'access.log'))
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from penstock.apps.accesslog.shipping.positions import FilePosition

log = logging.getLogger(__name__)

HEAD_BYTES, TAIL_BYTES = 1024, 256
#: An address and a time: so many first bytes are hardly the same in two logs.
TELLING_BYTES = 40
_PACKED = ".gz"
#: What rotation puts behind a name: a number, a date, a date and a time.
_ROTATED = re.compile(
    r"[.-](?:\d{1,4}|\d{8}(?:[.-]?\d{2,6})?|\d{4}-\d{2}-\d{2}(?:[-_T.]\d+)*|\d{9,10})$"
    r"|[.-](?:\d{8}(?:-\d+)?|\d{4}-\d{2}-\d{2})(?=\.log$)"
)
Family = tuple[str, str]
Found = dict[tuple[int, int], tuple[str, tuple[int, int]]]  # identity: path, (size, time of last write)


def is_packed(path: str) -> bool:
    return path.endswith(_PACKED)


def family_of(path: str) -> Family:
    """The folder and the name without what rotation adds: files of one log, one after another."""
    folder, name = os.path.split(path)
    name = name.removesuffix(_PACKED)
    return folder, _ROTATED.sub("", name) or name


def is_rotated(path: str) -> bool:
    """Whether the name is one that rotation gives."""
    return os.path.basename(path) != family_of(path)[1]


def list_relatives(path: str) -> list[str]:
    """All files of the same family that are there, the one that was written last at the end."""
    folder, _ = family = family_of(path)
    try:
        found = [entry.path for entry in os.scandir(folder or ".") if entry.is_file()]
    except OSError:
        return []
    paths = [os.path.join(folder, os.path.basename(each)) for each in found]
    return sort_by_age([each for each in paths if family_of(each) == family])


def sort_by_age(paths: list[str]) -> list[str]:
    """The oldest first; of equally old ones the higher number, which rotation has moved further."""
    aged = []
    for path in paths:
        try:
            aged.append((os.stat(path).st_mtime_ns, path))
        except OSError:  # it was there a moment ago
            continue
    aged.sort(key=lambda pair: _in_parts(pair[1]), reverse=True)
    aged.sort(key=lambda pair: pair[0])
    return [path for _, path in aged]


def _in_parts(path: str) -> list[tuple[int, str]]:
    """Digits as numbers, so that 10 is behind 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", path)]


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


class LogFile:
    """One open file, plain or packed; it stays readable when it is renamed or deleted."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  (it lives as long as this does)
        found = os.fstat(self._file.fileno())
        self.packed = is_packed(path)
        self.identity = (found.st_dev, found.st_ino)
        self.broken = False
        self._unpacked = gzip.GzipFile(fileobj=self._file, mode="rb") if self.packed else None
        self._head = self._read_packed(0, HEAD_BYTES) if self.packed else b""

    def status(self) -> tuple[int, int]:
        """Its size on the disk and when it was last written: equal to before, nothing has happened."""
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from there; fewer only at the end."""
        if self._unpacked is not None:
            if offset + size <= len(self._head):
                return self._head[offset : offset + size]
            return self._read_packed(offset, size)
        pieces = []
        while size > 0:
            piece = os.pread(self._file.fileno(), size, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _read_packed(self, offset: int, size: int) -> bytes:
        assert self._unpacked is not None
        data = bytearray()
        try:
            if self._unpacked.tell() != offset:
                self._unpacked.seek(offset)
            while len(data) < size:
                piece = self._unpacked.read1(size - len(data))
                if not piece:
                    break
                data += piece
            self.broken = False
        except (EOFError, gzip.BadGzipFile, zlib.error):
            # Cut off or damaged, or not yet written to its end: what came before the fault counts.
            self.broken = True
            self._unpacked = gzip.GzipFile(fileobj=self._file, mode="rb")
            self._file.seek(0)
        return bytes(data)

    def holds(self, position: FilePosition) -> bool:
        """Whether the bytes that were read up to this position are still those."""
        if digest(self.read(0, position.head_bytes)) != position.head and position.head_bytes:
            return False
        before = min(position.offset, TAIL_BYTES)
        return not before or digest(self.read(position.offset - before, before)) == position.tail

    def begins_like(self, other: LogFile) -> bool:
        """Whether one may be a copy of the other, even one that is still being written."""
        mine, theirs = self.read(0, HEAD_BYTES), other.read(0, HEAD_BYTES)
        shared = min(len(mine), len(theirs))
        return shared >= TELLING_BYTES and mine[:shared] == theirs[:shared]

    def close(self) -> None:
        self._file.close()


def can_compare(position: FilePosition) -> bool:
    """Whether enough was read to know the same bytes again in another file."""
    return position.offset > 0 or position.head_bytes >= TELLING_BYTES


def open_log(path: str) -> LogFile | None:
    """The file, or nothing where it is gone, no plain file, or not ours to read (which is told)."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        return LogFile(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("The file %s cannot be read: %s.", path, error.strerror)
        return None


def find_again(position: FilePosition) -> tuple[LogFile, FilePosition] | None:
    """The file of a stored position, wherever it is now: under its name, renamed, copied or packed."""
    return next(chain(_with_identity(position), _with_content(position)), None)


def _with_identity(position: FilePosition) -> Iterator[tuple[LogFile, FilePosition]]:
    for path in [position.path, *list_relatives(position.path)]:
        try:
            found = os.stat(path)
        except OSError:
            continue
        if (found.st_dev, found.st_ino) == position.identity:
            file = open_log(path)
            if file is not None and file.holds(position):
                yield file, replace(position, path=path)
            elif file is not None:
                file.close()


def _with_content(position: FilePosition) -> Iterator[tuple[LogFile, FilePosition]]:
    if not can_compare(position):
        return
    for path in list_relatives(position.path):
        file = open_log(path)
        if file is None:
            continue
        if file.holds(position):
            device, inode = file.identity
            yield file, replace(position, path=path, device=device, inode=inode, packed=file.packed)
        else:
            file.close()


def find_copy(position: FilePosition) -> tuple[LogFile, FilePosition] | None:
    """What was copied away before the file was emptied: another file with the same bytes."""
    for file, found in _with_content(position):
        if found.identity != position.identity:
            return file, found
        file.close()
    return None


def find_grown(finished: list[FilePosition]) -> Iterator[tuple[LogFile, str, FilePosition]]:
    """Those of these files, with their names of now, that have more in them than was read."""
    wanted = {each.identity: each for each in finished if not each.packed and can_compare(each)}
    families = {family_of(each.path) for each in wanted.values()}
    paths = []
    for folder in sorted({folder for folder, _ in families}):  # each once, for it may hold many logs
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        paths += [path for name in names if family_of(path := os.path.join(folder, name)) in families]
    for identity, (path, (size, _)) in stat_all([each for each in paths if not is_packed(each)]).items():
        if identity not in wanted or size <= wanted[identity].offset:
            continue
        file = open_log(path)
        if file is not None and file.identity == identity and file.holds(wanted[identity]):
            yield file, path, wanted[identity]
        elif file is not None:
            file.close()


def stat_all(paths: list[str]) -> Found:
    """What these names stand for now; of several names for one file the first."""
    there: Found = {}
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:  # it was there a moment ago
            continue
        there.setdefault((found.st_dev, found.st_ino), (path, (found.st_size, found.st_mtime_ns)))
    return there


def start_at_end(file: LogFile, position: FilePosition, longest_line: int) -> FilePosition:
    """Behind the last whole line that is there now."""
    size, _ = file.status()
    begin = max(0, size - longest_line)
    last = file.read(begin, size - begin).rfind(b"\n") + 1
    offset = begin + last if last else (0 if not begin else size)
    head = file.read(0, min(HEAD_BYTES, size))
    before = file.read(max(0, offset - TAIL_BYTES), min(offset, TAIL_BYTES))
    return replace(
        position,
        offset=offset,
        head=digest(head),
        head_bytes=len(head),
        tail=digest(before) if before else "",
        skipping=bool(begin and not last),
    )
