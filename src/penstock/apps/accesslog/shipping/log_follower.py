"""Follows log files through rotation, truncation and restarts: each line once, in the order of its file.

Rules: a line ends with a newline; the last line waits for its newline. A file that was rotated away is read
to its end before the one that took its name, and is watched for a while longer, because servers write their
last lines late. Lines longer than the limit are cut and marked, so memory is bounded. A position moves only
with lines that were handed out; a caller that could not send them makes a new follower from the durable
positions. After each chunk, bytes read before are checked again: if they have changed, the file was emptied
meanwhile (copytruncate), and the chunk is dropped. `log_rotation` finds out which files there are.

Why not inotify: most of the work here is to find out what happened while nothing was listening.

    follower = LogFollower(["/var/log/apache2/*access.log"], state.files)
    for piece in follower.read(8 << 20):
        send(piece.lines)
    state = replace(state, files=follower.positions())
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from penstock.apps.accesslog.shipping.followed_files import HEAD_BYTES, TAIL_BYTES, digest, is_behind_nuls
from penstock.apps.accesslog.shipping.log_file_names import Family, is_rotated
from penstock.apps.accesslog.shipping.log_rotation import (
    CHUNK_BYTES,
    LONGEST_LINE_BYTES,
    FileTracking,
    Tracked,
)
from penstock.apps.accesslog.shipping.shipped_positions import FilePosition
from penstock.apps.accesslog.shipping.whole_lines import Piece, take_whole
from penstock.core.loggers import get_logger
from penstock.kernels.newline_cutting import cut_lines

__all__ = ["CHUNK_BYTES", "LONGEST_LINE_BYTES", "LogFollower", "Piece"]

log = get_logger(__name__)


class LogFollower(FileTracking):
    """Reads what is new in the files that match `patterns`. Use it from one thread, and `close` it."""

    def read(self, most_bytes: int) -> list[Piece]:
        """Return what is new, about this many bytes, oldest files first; an empty list when all is read."""
        self.look()
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

    def _read_family(self, family: Family) -> Iterator[Piece]:
        """Yield chunk after chunk; a file is begun when those before it have nothing left."""
        for tracked in list(self._families.get(family, ())):
            over = False
            while not over:
                while not tracked.drained and (piece := self._read_chunk(tracked)) is not None:
                    yield piece
                if not tracked.drained:
                    return
                if not self._is_over(tracked):
                    break
                yield from self._finish(tracked)
                over = tracked.drained  # False if the file was written to in this moment

    def _read_chunk(self, tracked: Tracked) -> Piece | None:
        if self.is_copy_after_all(tracked):
            self.close_file(tracked)
            return None
        position = tracked.position
        data = tracked.file.read(position.offset, self._chunk_bytes)
        tracked.drained = len(data) < self._chunk_bytes
        if not tracked.file.packed and data and not tracked.file.has_same_bytes(position):
            tracked.drained = False
            self.replace_emptied(tracked)
            return None
        taken, whole, skipping = take_whole(
            data,
            skipping=position.skipping,
            behind_nuls=is_behind_nuls(position),
            longest=self._longest_line,
        )
        if not taken:
            return None
        tracked.grown_at = self._clock()
        if position.head_bytes < min(HEAD_BYTES, position.offset + taken):
            self.learn_head(tracked)
        tracked.position = _advance(tracked, data, taken, skipping=skipping)
        lines, cut_rows = cut_lines(whole, self._longest_line)
        return Piece(position.path, lines, cut_rows, taken)

    # --- the end of a file ----------------------------------------------------------------------------

    def _is_over(self, tracked: Tracked) -> bool:
        """Return whether a file that was read to its end can be closed."""
        if tracked.file.packed:
            quiet = not tracked.file.broken
        else:
            is_last = self._families[tracked.family][-1] is tracked
            superseded = is_rotated(tracked.position.path) and not is_last
            if not (tracked.away or superseded):
                return False
            quiet = False
        return quiet or self._clock() - tracked.grown_at >= self._quiet_s

    def _finish(self, tracked: Tracked) -> Iterator[Piece]:
        position = tracked.position
        rest = tracked.file.read(position.offset, self._longest_line + 1)
        emptied = rest and not tracked.file.packed and not tracked.file.has_same_bytes(position)
        if emptied or b"\n" in rest or len(rest) > self._longest_line or (rest and position.skipping):
            tracked.drained = False  # written to since it was read: these are ordinary lines
            return
        if tracked.file.broken:
            log.warning("The packed file %s is cut off or damaged; it was read up to there.", position.path)
        if rest:
            tracked.position = _advance(tracked, rest, len(rest), skipping=False)
        self.close_file(tracked)
        self.remember(tracked)
        if rest:
            lines, cut_rows = cut_lines(rest + b"\n", self._longest_line)
            yield Piece(position.path, lines, cut_rows, len(rest))


def _advance(tracked: Tracked, data: bytes, taken: int, *, skipping: bool) -> FilePosition:
    position = tracked.position
    offset = position.offset + taken
    before = data[max(0, taken - TAIL_BYTES) : taken]
    if len(before) < min(offset, TAIL_BYTES):
        begin = max(0, offset - TAIL_BYTES)
        before = tracked.file.read(begin, position.offset - begin) + before
    return replace(position, offset=offset, tail=digest(before), skipping=skipping)
