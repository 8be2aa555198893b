"""Follows log files through rotation, truncation and restarts: each line once, in the order of its file.

Rules: a line is what ends with a newline; the last one waits for its own. A file that was rotated away is
read to its end before the one that took its name, and is watched for a while longer, because servers write
their last lines late; only then what has no newline counts as its last line. The last finished files are
still looked at, and one that grows is read on. Lines longer than the limit are
cut, marked, and the rest is left out, so memory is bounded. Files are read in chunks and cut in bulk; no line
is touched alone.

A position moves only with lines that were handed out. Whoever could not send them makes a new follower from
the positions that are durable. Bytes read before are looked at again after each chunk: where they have
changed, the file was emptied meanwhile (copytruncate), the chunk is thrown away, and the copy, if there is
one, is read to its end first.

Why not inotify: it tells of changes while one listens, and most of the work here is to find out what happened
while nobody did.

    follower = Follower(["/var/log/apache2/*access.log"], state.files)
    for piece in follower.read(8 << 20):
        send(piece.lines)
    state = replace(state, files=follower.positions())
"""

from __future__ import annotations

import glob
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.apps.accesslog.shipping.following_files import (
    HEAD_BYTES,
    TAIL_BYTES,
    TELLING_BYTES,
    Family,
    Found,
    LogFile,
    can_compare,
    digest,
    family_of,
    find_again,
    find_copy,
    find_grown,
    is_packed,
    is_rotated,
    list_relatives,
    open_log,
    sort_by_age,
    start_at_end,
    stat_all,
)
from penstock.apps.accesslog.shipping.positions import FilePosition

log = logging.getLogger(__name__)

#: A line of this length and its key and headers still fit into what brokers take by default.
LONGEST_LINE_BYTES = 1_000_000
CHUNK_BYTES = 2 << 20
#: How many finished files of one log are remembered, so that a packed copy of one is not sent again.
REMEMBERED = 50
#: How many of them, the last ones, are looked at for lines that a server wrote long after the rotation.
WATCHED = 4
#: A copy that has not changed for so long is whole.
_SETTLING_S = 2.0
_NEWLINE = 0x0A


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of one file, without their newlines; `cut_rows` were longer than the limit."""

    path: str
    lines: pa.Array
    cut_rows: npt.NDArray[np.int64]
    size: int


@dataclass(slots=True, eq=False)
class _Tracked:
    """A file that is being read. `drained`: nothing was left when it was last looked at."""

    family: Family
    file: LogFile
    position: FilePosition
    away: bool = False
    drained: bool = False
    grown_at: float = 0.0
    status: tuple[int, int] = field(default=(0, 0))


class Follower:
    """Reads what is new in the files that match `patterns`. For one thread; `close` it."""

    def __init__(
        self,
        patterns: Sequence[str],
        positions: Sequence[FilePosition] = (),
        *,
        from_end: bool = False,
        history: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        longest_line: int = LONGEST_LINE_BYTES,
        quiet_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patterns = [os.path.abspath(each) for each in patterns]
        self._history = history
        self._longest_line = longest_line
        self._chunk_bytes = max(chunk_bytes, longest_line + 1)
        self._quiet_s = quiet_s
        self._clock = clock
        self._families: dict[Family, list[_Tracked]] = {}
        self._finished: dict[Family, list[FilePosition]] = {}
        self._judged: dict[tuple[int, int], tuple[int, tuple[int, int]]] = {}  # not to be read, as of when
        self._changes = 0  # of what files are compared with
        self._unsettled: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {}
        self._turn = 0
        self.lost: list[FilePosition] = []
        self._blank: list[FilePosition] = []
        for each in positions:
            self._resume(each)
        self._look(first=True, from_end=from_end)

    # --- reading --------------------------------------------------------------------------------------

    def read(self, most_bytes: int) -> list[Piece]:
        """What is new, about so many bytes of it, oldest files first; nothing when all is read."""
        self._look()
        pieces: list[Piece] = []
        left = most_bytes
        names = list(self._families)
        self._turn += 1
        waiting = [iter(self._read_family(names[(self._turn + n) % len(names)])) for n in range(len(names))]
        while waiting and left > 0:
            for each in list(waiting):
                piece = next(each, None)
                if piece is None:
                    waiting.remove(each)
                    continue
                left -= piece.size
                if len(piece.lines):
                    pieces.append(piece)
                if left <= 0:
                    break
        return pieces

    @property
    def is_drained(self) -> bool:
        """Whether everything there was at the last look has been read."""
        return all(each.drained for some in self._families.values() for each in some)

    @property
    def is_following(self) -> bool:
        """Whether any file was ever found."""
        return bool(self._families or self._finished)

    def positions(self) -> tuple[FilePosition, ...]:
        """Where all files stand after what was read, and the finished ones that are remembered."""
        families = sorted(self._families.keys() | self._finished.keys())
        return tuple(
            each
            for family in families
            for each in (
                *self._finished.get(family, ()),
                *(tracked.position for tracked in self._families.get(family, ())),
            )
        )

    def close(self) -> None:
        for some in self._families.values():
            for each in some:
                each.file.close()
        self._families.clear()

    def _read_family(self, family: Family) -> Iterator[Piece]:
        """Chunk after chunk; a file is begun when those before it have nothing left."""
        for tracked in list(self._families.get(family, ())):
            while not tracked.drained and (piece := self._read_chunk(tracked)) is not None:
                yield piece
            if not tracked.drained:
                return
            if self._is_over(tracked):
                yield from self._finish(tracked)

    def _read_chunk(self, tracked: _Tracked) -> Piece | None:
        position = tracked.position
        data = tracked.file.read(position.offset, self._chunk_bytes)
        tracked.drained = len(data) < self._chunk_bytes
        if not tracked.file.packed and data and not tracked.file.holds(position):
            tracked.drained = False
            self._replace_emptied(tracked)
            return None
        taken, whole, skipping = self._take_lines(data, position.skipping)
        if not taken:
            return None
        tracked.grown_at = self._clock()
        if position.head_bytes < min(HEAD_BYTES, position.offset + taken):
            self._learn_head(tracked)
        tracked.position = self._advance(tracked, data, taken, skipping)
        lines, cut_rows = _cut_lines(whole, self._longest_line)
        return Piece(position.path, lines, cut_rows, taken)

    def _take_lines(self, data: bytes, skipping: bool) -> tuple[int, bytes, bool]:
        """How many bytes are done, the lines among them, and whether a line is being left out at the end."""
        begin = 0
        if skipping:
            begin = data.find(b"\n") + 1
            if not begin:
                return len(data), b"", True
        last = data.rfind(b"\n") + 1
        if last > begin:
            return last, data[begin:last], False
        if len(data) - begin > self._longest_line:
            return len(data), data[begin : begin + self._longest_line + 1] + b"\n", True
        return begin, b"", False

    def _advance(self, tracked: _Tracked, data: bytes, taken: int, skipping: bool) -> FilePosition:
        position = tracked.position
        offset = position.offset + taken
        before = data[max(0, taken - TAIL_BYTES) : taken]
        if len(before) < min(offset, TAIL_BYTES):
            begin = max(0, offset - TAIL_BYTES)
            before = tracked.file.read(begin, position.offset - begin) + before
        return replace(position, offset=offset, tail=digest(before), skipping=skipping)

    # --- which files there are ------------------------------------------------------------------------

    def _look(self, *, first: bool = False, from_end: bool = False) -> None:
        """Find new files, and what became of those that are known."""
        there = stat_all(self._list_paths())
        self._reopen_grown()
        for tracked in [each for some in self._families.values() for each in some]:
            self._look_at(tracked, there.get(tracked.position.identity, ("",))[0])
        new = {each: found for each, found in there.items() if self._is_new(each, found[1])}
        between = self._find_between(new)
        paths = [path for path, _ in (*new.values(), *between.values())]
        for identity, (path, status) in stat_all(sort_by_age(paths)).items():
            if first or identity in between or self._is_settled(path, identity, status):
                self._meet(path, identity, status, from_end=from_end)
        self._judged = {each: when for each, when in self._judged.items() if each in there}
        self._unsettled = {each: when for each, when in self._unsettled.items() if each in there}
        self._forget_finished(set(there))

    def _reopen_grown(self) -> None:
        """A server process that ends late writes to a finished file: it is read on, before the others."""
        watched = [each for some in self._finished.values() for each in some[-WATCHED:]]
        for file, path, finished in find_grown(watched):
            family = family_of(path)
            self._finished[family].remove(finished)
            position = replace(finished, path=path, finished=False)
            tracked = _Tracked(family, file, position, grown_at=self._clock())
            self._families.setdefault(family, []).insert(0, tracked)
            self._changes += 1

    def _is_new(self, identity: tuple[int, int], status: tuple[int, int]) -> bool:
        if self._judged.get(identity) == (self._changes, status):
            return False
        tracked = (each for some in self._families.values() for each in some)
        return all(each.position.identity != identity for each in tracked)

    def _find_between(self, new: Found) -> Found:
        """Files that came and were rotated away again while nobody looked: younger than what is known."""
        found: Found = {}
        for path, _ in list(new.values()):
            since = None if is_rotated(path) else self._last_write(family_of(path))
            if since is not None:
                relatives = stat_all(list_relatives(path))
                found |= {
                    each: (name, status)
                    for each, (name, status) in relatives.items()
                    if status[1] >= since and self._is_new(each, status)
                }
        return found

    def _last_write(self, family: Family) -> int | None:
        """When the youngest known file of a family was last written to."""
        if self._families.get(family):
            return self._families[family][-1].file.status()[1]
        gone = [each for each in (*self.lost, *self._blank) if family_of(each.path) == family]
        return max((each.written_ns for each in (*gone, *self._finished.get(family, ()))), default=None)

    def _is_settled(self, path: str, identity: tuple[int, int], status: tuple[int, int]) -> bool:
        """A rotated name that appears may be a copy: it is compared when there is enough of it."""
        if not is_rotated(path) or (not is_packed(path) and status[0] >= TELLING_BYTES):
            return True
        since, before = self._unsettled.get(identity, (self._clock(), None))
        if before != status:
            since = self._clock()
        self._unsettled[identity] = (since, status)
        return self._clock() - since >= min(self._quiet_s, _SETTLING_S)

    def _list_paths(self) -> list[str]:
        found: dict[str, None] = {}
        for pattern in self._patterns:
            named = glob.has_magic(pattern) is False
            for path in [pattern] if named else glob.glob(pattern, recursive=True):
                if named or self._history or not is_packed(path) or is_packed(pattern):
                    found.setdefault(path)
                if self._history:
                    for each in list_relatives(path):
                        found.setdefault(each)
        return sort_by_age(list(found))

    def _look_at(self, tracked: _Tracked, path: str) -> None:
        tracked.away = not path
        if path and path != tracked.position.path:
            tracked.position = replace(tracked.position, path=path)
        status = tracked.file.status()
        if status == tracked.status:
            return
        tracked.status = status
        tracked.drained = False
        tracked.position = replace(tracked.position, written_ns=status[1])
        shrunk = not tracked.file.packed and status[0] < tracked.position.offset
        if shrunk or not (tracked.file.packed or tracked.file.holds(tracked.position)):
            self._replace_emptied(tracked)
        elif tracked.position.head_bytes < HEAD_BYTES:
            self._learn_head(tracked)

    def _learn_head(self, tracked: _Tracked) -> None:
        """The more is known of its first bytes, the surer a copy is told from another file."""
        head = tracked.file.read(0, HEAD_BYTES)
        if len(head) > tracked.position.head_bytes:
            tracked.position = replace(tracked.position, head=digest(head), head_bytes=len(head))
            self._changes += 1

    def _meet(self, path: str, identity: tuple[int, int], status: tuple[int, int], *, from_end: bool) -> None:
        """A file that is not being read: a new one, a copy of a known one, or one that was finished."""
        file = open_log(path)
        if file is None:
            return
        position = self._place(file, path, status, from_end=from_end)
        if position is None or file.identity != identity:  # or renamed in this very moment
            if file.identity == identity:
                self._judged[identity] = (self._changes, status)
            file.close()
            return
        self._track(family_of(path), file, position)

    def _place(
        self, file: LogFile, path: str, status: tuple[int, int], *, from_end: bool
    ) -> FilePosition | None:
        """Where to begin in a file; nowhere if what is in it was, or is being, read elsewhere."""
        family = family_of(path)
        device, inode = file.identity
        for finished in self._finished.get(family, ()):
            if finished.identity == file.identity and can_compare(finished) and file.holds(finished):
                if file.packed or status[0] <= finished.offset:
                    return None
                self._finished[family].remove(finished)
                return replace(finished, path=path, finished=False)
        copied = self._find_original(file, path) if is_rotated(path) else None
        if copied is not None:
            again = replace(copied, path=path, device=device, inode=inode, packed=file.packed)
            return replace(again, finished=False) if copied.finished and file.holds(copied) else None
        head = file.read(0, HEAD_BYTES)
        position = FilePosition(
            path,
            device,
            inode,
            head=digest(head),
            head_bytes=len(head),
            packed=file.packed,
            written_ns=status[1],
        )
        return start_at_end(file, position, self._longest_line) if from_end and not file.packed else position

    def _find_original(self, file: LogFile, path: str) -> FilePosition | None:
        """The known file that this one is a copy of, whole or not. It is asked again when it changes."""
        for tracked in self._families.get(family_of(path), ()):
            if file.begins_like(tracked.file):
                return tracked.position
        for finished in self._finished.get(family_of(path), ()):
            head = file.read(0, finished.head_bytes)
            if can_compare(finished) and digest(head) == finished.head:
                return finished
        return None

    def _track(self, family: Family, file: LogFile, position: FilePosition) -> None:
        tracked = _Tracked(family, file, position, grown_at=self._clock())
        self._families.setdefault(family, []).append(tracked)

    def _resume(self, position: FilePosition) -> None:
        family = family_of(position.path)
        if position.finished:
            self._finished.setdefault(family, []).append(position)
            return
        if not position.offset and not position.head_bytes:
            self._blank.append(position)  # it was empty: whatever has its number now is as good as new
            return
        found = find_again(position)
        if found is None:
            log.warning(
                "The file %s is gone, and so is what was in it behind byte %d.",
                position.path,
                position.offset,
            )
            self.lost.append(position)
            return
        self._track(family, *found)

    def _replace_emptied(self, tracked: _Tracked) -> None:
        """The same file begins anew. What was not read of its old content is in a copy, or lost."""
        old = tracked.position
        some = self._families[tracked.family]
        copy = find_copy(old)
        if copy is not None and any(each.position.identity == copy[1].identity for each in some):
            copy[0].close()
            copy = None
        if copy is not None:
            some.insert(some.index(tracked), _Tracked(tracked.family, *copy, grown_at=self._clock()))
        elif old.offset:
            log.warning("The file %s was emptied; what was behind byte %d is gone.", old.path, old.offset)
        self._changes += 1
        tracked.position = FilePosition(old.path, old.device, old.inode, written_ns=old.written_ns)
        tracked.drained = False
        self._learn_head(tracked)

    # --- the end of a file ----------------------------------------------------------------------------

    def _is_over(self, tracked: _Tracked) -> bool:
        """Whether a file that was read to its end can be let go of."""
        if tracked.file.packed:
            quiet = not tracked.file.broken
        else:
            is_last = self._families[tracked.family][-1] is tracked
            superseded = is_rotated(tracked.position.path) and not is_last
            if not (tracked.away or superseded):
                return False
            quiet = False
        return quiet or self._clock() - tracked.grown_at >= self._quiet_s

    def _finish(self, tracked: _Tracked) -> Iterator[Piece]:
        position = tracked.position
        rest = b"" if position.skipping else tracked.file.read(position.offset, self._longest_line)
        if tracked.file.broken:
            log.warning("The packed file %s is cut off or damaged; it was read up to there.", position.path)
        if rest and not tracked.file.packed and not tracked.file.holds(position):
            self._replace_emptied(tracked)
            return
        if rest:
            tracked.position = self._advance(tracked, rest, len(rest), skipping=False)
        some = self._families[tracked.family]
        some.remove(tracked)
        if not some:
            del self._families[tracked.family]
        tracked.file.close()
        self._changes += 1
        self._finished.setdefault(tracked.family, []).append(replace(tracked.position, finished=True))
        if rest:
            lines, cut_rows = _cut_lines(rest + b"\n", self._longest_line)
            yield Piece(position.path, lines, cut_rows, len(rest))

    def _forget_finished(self, there: set[tuple[int, int]]) -> None:
        for family, some in self._finished.items():
            surplus = [each for each in some if each.identity not in there][:-REMEMBERED]
            if surplus:
                self._finished[family] = [each for each in some if each not in surplus]


def _cut_lines(whole: bytes, longest: int) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Lines of a text that ends with a newline; of those that are too long, the first `longest` bytes."""
    octets = np.frombuffer(whole, np.uint8)
    ends = np.flatnonzero(octets == _NEWLINE)
    begins = np.zeros(ends.size, np.int64)
    begins[1:] = ends[:-1] + 1
    sizes = ends - begins
    cut_rows = np.flatnonzero(sizes > longest)
    keep = octets != _NEWLINE
    for row in cut_rows.tolist():  # rare: each is longer than a whole message may be
        keep[begins[row] + longest : ends[row]] = False
    starts = np.zeros(ends.size + 1, np.int64)
    np.cumsum(np.minimum(sizes, longest), out=starts[1:])
    lines = pa.Array.from_buffers(
        pa.large_binary(), ends.size, [None, pa.py_buffer(starts), pa.py_buffer(octets[keep])]
    )
    return lines, cut_rows
