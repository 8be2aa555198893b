"""Files as a follower sees them: how they are identified and read, and where a lost one may be.

Rule: a name says nothing about a log file, because rotation gives it to another one. A file is identified by
its device and inode and by digests of bytes that were read from it: the first ones, and the last ones before
the position. Bytes that were once read do not change in a log. If they did, it is another file, or the same
one emptied and written again (copytruncate), even if it has grown beyond the position since.

Why the last bytes too and not only the first: logs may begin with the same lines each time.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import chain

from penstock.apps.accesslog.shipping.log_file_names import FileId, Listing, Status, family_of, is_packed
from penstock.apps.accesslog.shipping.shipped_positions import FilePosition
from penstock.core.loggers import get_logger

log = get_logger(__name__)

HEAD_BYTES, TAIL_BYTES = 1024, 256
#: An address and a time: two logs hardly ever share this many first bytes.
TELLING_BYTES = 40


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
        self._kept, self._kept_at = b"", 0  # the last bytes that were unpacked, and where they begin
        self._head = self._read_packed(0, HEAD_BYTES) if self.packed else b""

    def status(self) -> Status:
        """Return its size and the time of the last write: while both stay equal, nothing has happened."""
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from there; fewer only at the end."""
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
        """Read a packed file and keep what was read last.

        A chunk begins behind the last whole line of the one before. Without the kept bytes, going back by a
        few bytes would mean unpacking everything again.
        """
        assert self._unpacked is not None
        known = offset - self._kept_at
        if not 0 <= known <= len(self._kept):
            self._kept, self._kept_at, known = b"", offset, 0
        data = bytearray(self._kept[known : known + size])
        try:
            if len(data) < size and self._unpacked.tell() != offset + len(data):
                self._unpacked.seek(offset + len(data))
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
        if len(data) > len(self._kept) - known:
            begin = max(0, known - TAIL_BYTES)
            self._kept, self._kept_at = self._kept[begin:known] + data, self._kept_at + begin
        return bytes(data)

    def has_same_bytes(self, position: FilePosition) -> bool:
        """Return whether the bytes that were read up to this position are unchanged."""
        if digest(self.read(0, position.head_bytes)) != position.head and position.head_bytes:
            return False
        before = min(position.offset, TAIL_BYTES)
        return not before or digest(self.read(position.offset - before, before)) == position.tail

    def begins_like(self, other: LogFile) -> bool:
        """Return whether one may be a copy of the other, even one that is still being written."""
        mine, theirs = self.read(0, HEAD_BYTES), other.read(0, HEAD_BYTES)
        shared = min(len(mine), len(theirs))
        if shared < TELLING_BYTES or mine[:shared] != theirs[:shared]:
            return False
        if self.packed or other.packed:
            return True  # how far they could be compared is not known before all is unpacked
        # All logs of a server may begin with the same long header: the last bytes that both have decide.
        size = min(self.status()[0], other.status()[0])
        begin = max(0, size - HEAD_BYTES)
        mine, theirs = self.read(begin, size - begin), other.read(begin, size - begin)
        return mine == theirs or len(mine) != len(theirs)  # or emptied in this very moment

    def close(self) -> None:
        self._file.close()


def can_compare(position: FilePosition) -> bool:
    """Return whether enough was read to recognise the same bytes in another file."""
    return position.offset > 0 or position.head_bytes >= TELLING_BYTES


def is_behind_nuls(position: FilePosition) -> bool:
    """Return whether there was nothing before this position, or a hole without text."""
    before = min(position.offset, TAIL_BYTES)
    return not before or position.tail == digest(bytes(before))


def open_log(path: str) -> LogFile | None:
    """Return the open file; None if it is gone, not a regular file, or not readable (which is logged)."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        return LogFile(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(path, error.strerror)
        return None


@functools.lru_cache(maxsize=1024)
def _warn_once(path: str, why: str | None) -> None:
    """Log a problem once; the file is tried again at each look."""
    log.warning("The file %s cannot be read: %s.", path, why)


def find_again(
    position: FilePosition, listing: Listing, taken: Collection[FileId] = ()
) -> tuple[LogFile, FilePosition] | None:
    """Return the file of a stored position, under its name, renamed, copied or packed."""
    some = chain(_with_identity(position, listing), _with_content(position, listing))
    for file, found in some:
        if file.identity not in taken:
            return file, found
        file.close()
    return None


def _with_identity(position: FilePosition, listing: Listing) -> Iterator[tuple[LogFile, FilePosition]]:
    for path in [position.path, *listing.list_relatives(position.path)]:
        found = listing.stat(path)
        if found is not None and (found.st_dev, found.st_ino) == position.identity:
            file = open_log(path)
            if file is not None and file.identity == position.identity and file.has_same_bytes(position):
                yield file, replace(position, path=path)
            elif file is not None:
                file.close()


def _with_content(position: FilePosition, listing: Listing) -> Iterator[tuple[LogFile, FilePosition]]:
    if not can_compare(position):
        return
    for path in listing.list_relatives(position.path):
        file = open_log(path)
        if file is None:
            continue
        if file.has_same_bytes(position):
            device, inode = file.identity
            yield file, replace(position, path=path, device=device, inode=inode, packed=file.packed)
        else:
            file.close()


def is_gone(position: FilePosition, listing: Listing) -> bool:
    """Return whether a missing file is gone: its name is another file's, and no relative is hidden.

    One that cannot be reached now (no permission, no folder, renamed in this moment) may be the missing one.
    """
    relatives = listing.list_relatives(position.path)
    if position.path not in relatives:
        return False
    for path in relatives:
        file, listed = open_log(path), listing.stat(path)
        if file is None or listed is None:
            return False
        file.close()
        if file.identity != (listed.st_dev, listed.st_ino):
            return False
    return True


def find_copy(position: FilePosition) -> tuple[LogFile, FilePosition] | None:
    """Return the copy made before the file was emptied: another file with the same bytes."""
    for file, found in _with_content(position, Listing()):  # as it is now: the copy may be a moment old
        if found.identity != position.identity:
            return file, found
        file.close()
    return None


def is_copy_of_finished(file: LogFile, finished: FilePosition, listing: Listing) -> bool:
    """Return whether the content of a finished file is in this one, or is being copied into it."""
    if not can_compare(finished) or digest(file.read(0, finished.head_bytes)) != finished.head:
        return False
    if file.has_same_bytes(finished):
        return True
    if file.packed:
        return file.broken
    # Shorter, with the same beginning: an unfinished copy, or another log with the same header. While a copy
    # is being made, its original is still there.
    for path in listing.list_relatives(finished.path):
        found = listing.stat(path)
        if found is not None and (found.st_dev, found.st_ino) == finished.identity != file.identity:
            original = open_log(path)
            if original is not None:
                alike = file.begins_like(original)
                original.close()
                return alike
    return False


def find_grown(finished: list[FilePosition], listing: Listing) -> Iterator[tuple[LogFile, str, FilePosition]]:
    """Yield those of these files, with their present names, that hold more than was read."""
    wanted = {each.identity: each for each in finished if not each.packed and can_compare(each)}
    relatives: dict[str, None] = {}
    for path in {family_of(each.path): each.path for each in wanted.values()}.values():
        relatives |= dict.fromkeys(listing.list_relatives(path))
    paths = [each for each in relatives if not is_packed(each)]
    for identity, (path, (size, _)) in listing.identify(paths).items():
        if identity not in wanted or size <= wanted[identity].offset:
            continue
        file = open_log(path)
        if file is not None and file.identity == identity and file.has_same_bytes(wanted[identity]):
            yield file, path, wanted[identity]
        elif file is not None:
            file.close()


def start_at_end(file: LogFile, position: FilePosition, longest_line: int) -> FilePosition:
    """Return the position behind the last whole line that is there now."""
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
