"""Decides which files a follower reads: new ones, rotated ones, copies, and temporarily unreachable ones.

Rules: the files that a pattern names are followed. Positions of other files are kept unchanged, in case they
are named again. A stored position is given up only if its file is nowhere: its name belongs to another one,
and all files of the log could be examined. A file that cannot be opened, or whose folder is missing, is
waited for. A new rotated name may be a copy of what was read, so it is compared with all that is known. A
file too short for that waits until it is longer, or has not changed for a while.

Files are numbered in the order in which they are read, and a restart keeps that order.
"""

from __future__ import annotations

import glob
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from penstock.apps.accesslog.shipping.followed_files import (
    HEAD_BYTES,
    TELLING_BYTES,
    LogFile,
    can_compare,
    digest,
    find_again,
    find_copy,
    find_grown,
    is_copy_of_finished,
    is_gone,
    open_log,
    start_at_end,
)
from penstock.apps.accesslog.shipping.log_file_names import (
    Family,
    FileId,
    FilesThere,
    Listing,
    Status,
    family_of,
    is_packed,
    is_rotated,
    names_family,
)
from penstock.apps.accesslog.shipping.shipped_positions import FilePosition
from penstock.core.loggers import get_logger

log = get_logger(__name__)

#: A line of this length, with its key and headers, still fits into what brokers take by default.
LONGEST_LINE_BYTES = 1_000_000
CHUNK_BYTES = 2 << 20
#: How many finished files of one log are remembered after they vanish, so that a packed copy of one is not
#: sent again. For each pattern, as many unreachable files are waited for.
REMEMBERED = 50
#: How many finished files of a log, the last ones, are checked for lines written long after the rotation.
WATCHED = 4
#: A copy that has not changed for this long is whole.
_SETTLING_S = 2.0
#: How often an unreachable file is searched for even though nothing seems to have changed.
_SEARCH_EVERY_S = 2.0


@dataclass(slots=True, eq=False)
class Tracked:
    """A file that is being read.

    `drained` says that nothing was left at the last look, `compared` that there was enough of the file to
    know that it is not a copy.
    """

    family: Family
    file: LogFile
    position: FilePosition
    away: bool = False
    drained: bool = False
    compared: bool = False
    grown_at: float = 0.0
    status: Status = field(default=(0, 0))


class FileTracking:
    """The files of a follower, and what is known about others."""

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
        self._families: dict[Family, list[Tracked]] = {}
        self._finished: dict[Family, list[FilePosition]] = {}
        self._missing: list[FilePosition] = []
        self._others: tuple[FilePosition, ...] = ()
        self._judged: dict[FileId, tuple[int, Status]] = {}  # not to be read, as of when
        self._changes: Counter[Family] = Counter()  # of what new files are compared with
        self._unsettled: dict[FileId, tuple[float, Status, str]] = {}
        self._searched: tuple[float, frozenset[str]] = (0.0, frozenset())
        self._turn = 0
        self._last_number = max((each.number for each in positions), default=0)
        self.lost: list[FilePosition] = []
        self._blank: list[FilePosition] = []
        self._resume(sorted(positions, key=lambda each: each.number))
        self.look(from_end=from_end)

    @property
    def is_drained(self) -> bool:
        """Whether everything there was at the last look has been read."""
        return all(each.drained for each in self._tracked())

    @property
    def is_following(self) -> bool:
        """Whether any file was ever found."""
        return bool(self._families or self._finished)

    def positions(self) -> tuple[FilePosition, ...]:
        """Return where all files are after what was read, with those remembered or waited for."""
        finished = (each for some in self._finished.values() for each in some)
        return (
            *self._others,
            *finished,
            *self._missing,
            *self._blank,
            *(each.position for each in self._tracked()),
        )

    def close(self) -> None:
        for each in self._tracked():
            each.file.close()
        self._families.clear()

    def _tracked(self) -> Iterator[Tracked]:
        return (each for some in self._families.values() for each in some)

    # --- which files there are ------------------------------------------------------------------------

    def look(self, *, from_end: bool = False) -> None:
        """Find new files, and what became of those that are known."""
        listing = Listing()
        there = listing.identify(self._list_paths(listing))
        self._reopen_grown(listing)
        self._search_missing(listing)
        for tracked in list(self._tracked()):
            self._check_file(tracked, there.get(tracked.position.identity, ("",))[0])
        read = {each.position.identity for each in self._tracked()}
        new = {each: found for each, found in there.items() if self._is_new(each, *found, read)}
        again = listing.identify(path for _, _, path in self._unsettled.values())
        unsettled = {each: found for each, found in again.items() if self._is_new(each, *found, read)}
        new |= self._find_between(new, read, listing) | unsettled
        self._unsettled = {each: when for each, when in self._unsettled.items() if each in new}
        if new:
            paths = listing.sort_by_age([path for path, _ in new.values()])
            for identity, (path, status) in listing.identify(paths).items():
                if from_end or self._is_settled(path, identity, status):
                    self._classify(path, identity, status, listing, from_end=from_end)
        self._judged = {each: when for each, when in self._judged.items() if each in there}
        self._blank = [each for each in self._blank if family_of(each.path) not in self._families]
        self._forget_finished(there)

    def _list_paths(self, listing: Listing) -> list[str]:
        found: dict[str, None] = {}
        for pattern in self._patterns:
            named = glob.has_magic(pattern) is False
            paths = [pattern] if named else glob.glob(pattern, recursive=True)
            for path in paths:
                if named or self._history or not is_packed(path) or is_packed(pattern):
                    found.setdefault(path)
            if self._history:
                for path in {family_of(each): each for each in paths}.values():
                    found |= dict.fromkeys(listing.list_relatives(path))
        return list(found)

    def _is_new(self, identity: FileId, path: str, status: Status, read: set[FileId]) -> bool:
        return (
            identity not in read and self._judged.get(identity) != (self._changes[family_of(path)], status)
        )  # fmt: skip

    def _find_between(self, new: FilesThere, read: set[FileId], listing: Listing) -> FilesThere:
        """Return files, younger than what is known, that came and were rotated away between two looks."""
        found: FilesThere = {}
        for path, _ in new.values():
            since = None if is_rotated(path) else self._last_write(family_of(path))
            if since is not None:
                relatives = listing.identify(listing.list_relatives(path))
                found |= {
                    each: (name, status)
                    for each, (name, status) in relatives.items()
                    if status[1] >= since and self._is_new(each, name, status, read)
                }
        return found

    def _last_write(self, family: Family) -> int | None:
        """Return when the youngest known file of a family was last written to."""
        if self._families.get(family):
            return self._families[family][-1].file.status()[1]
        gone = [e for e in (*self.lost, *self._blank, *self._missing) if family_of(e.path) == family]
        return max((each.written_ns for each in (*gone, *self._finished.get(family, ()))), default=None)

    def _is_settled(self, path: str, identity: FileId, status: Status) -> bool:
        """Return whether a new file can be judged: under a rotated name it may be a copy."""
        since, before, _ = self._unsettled.pop(identity, (self._clock(), status, ""))
        since = since if before == status else self._clock()
        quiet = self._clock() - since >= min(self._quiet_s, _SETTLING_S)
        quiet |= time.time_ns() - status[1] >= _SETTLING_S * 1e9
        if quiet or not is_rotated(path) or _is_comparable(path, status):
            return True
        self._unsettled[identity] = (since, status, path)
        return False

    def _check_file(self, tracked: Tracked, path: str) -> None:
        tracked.away = not path
        if path and path != tracked.position.path:
            tracked.position = replace(tracked.position, path=path)
        status = tracked.file.status()
        if status == tracked.status:
            return
        tracked.drained = False
        tracked.position = replace(tracked.position, written_ns=status[1])
        shrunk = not tracked.file.packed and status[0] < tracked.position.offset
        if shrunk or not (tracked.file.packed or tracked.file.has_same_bytes(tracked.position)):
            self.replace_emptied(tracked)
        elif tracked.position.head_bytes < HEAD_BYTES:
            self.learn_head(tracked)
        tracked.status = status

    def learn_head(self, tracked: Tracked) -> None:
        """Learn more of a file's first bytes: the more are known, the more reliably a copy is recognised."""
        head = tracked.file.read(0, HEAD_BYTES)
        if len(head) > tracked.position.head_bytes:
            tracked.position = replace(tracked.position, head=digest(head), head_bytes=len(head))
            self._changes[tracked.family] += 1

    # --- a file that is not being read ----------------------------------------------------------------

    def _classify(
        self, path: str, identity: FileId, status: Status, listing: Listing, *, from_end: bool
    ) -> None:
        """Handle a file seen for the first time: new, a copy, finished before, or waited for."""
        file = open_log(path)
        if file is None:
            return
        if file.identity != identity:  # renamed in this very moment
            file.close()
            return
        position = self._place(file, path, status, listing, from_end=from_end)
        if position is None:
            self._judged[identity] = (self._changes[family_of(path)], status)
            file.close()
            return
        self._track(family_of(path), file, position, compared=position.head_bytes >= TELLING_BYTES)

    def _place(
        self, file: LogFile, path: str, status: Status, listing: Listing, *, from_end: bool
    ) -> FilePosition | None:
        """Return where to begin in a file; None if its content was, or is being, read elsewhere."""
        family = family_of(path)
        for finished in self._finished.get(family, ()):
            if finished.identity == file.identity and can_compare(finished):
                same = file.packed and finished.written_ns == status[1]  # not unpacked again to be sure
                if same or file.has_same_bytes(finished):
                    if file.packed or status[0] <= finished.offset:
                        return None
                    self._finished[family].remove(finished)
                    return replace(finished, path=path, finished=False)
        for missing in self._missing:
            same = missing.identity == file.identity or family_of(missing.path) == family
            if same and can_compare(missing) and file.has_same_bytes(missing):
                self._missing.remove(missing)
                return _move(missing, file, path)
        copied = self._find_original(file, path, listing) if is_rotated(path) else None
        if copied is not None:
            again = replace(_move(copied, file, path), number=self._next_number(), finished=False)
            return again if copied.finished and file.has_same_bytes(copied) else None
        head = file.read(0, HEAD_BYTES)
        position = FilePosition(
            path,
            *file.identity,
            packed=file.packed,
            head=digest(head),
            head_bytes=len(head),
            written_ns=status[1],
            number=self._next_number(),
        )
        return start_at_end(file, position, self._longest_line) if from_end and not file.packed else position

    def _find_original(
        self, file: LogFile, path: str, listing: Listing, but: Tracked | None = None
    ) -> FilePosition | None:
        """Return the known file that this one is a full or partial copy of; called again when it changes."""
        for tracked in self._families.get(family_of(path), ()):
            if tracked is but:
                continue
            # Its position reveals the copy even if the original was emptied a moment ago.
            known = tracked.position.offset and file.has_same_bytes(tracked.position)
            if known or file.begins_like(tracked.file):
                return tracked.position
        for finished in self._finished.get(family_of(path), ()):
            if is_copy_of_finished(file, finished, listing):
                return finished
        return None

    def is_copy_after_all(self, tracked: Tracked) -> bool:
        """Return whether a file too short to be compared at first turns out to be a copy."""
        path = tracked.position.path
        if tracked.compared or tracked.position.offset or not is_rotated(path):
            return False
        tracked.compared = len(tracked.file.read(0, TELLING_BYTES)) >= TELLING_BYTES
        return self._find_original(tracked.file, path, Listing(), but=tracked) is not None

    def _track(
        self, family: Family, file: LogFile, position: FilePosition, *, compared: bool = False
    ) -> None:
        some = self._families.setdefault(family, [])
        some.append(Tracked(family, file, position, compared=compared, grown_at=self._clock()))
        some.sort(key=lambda each: each.position.number)

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    # --- stored positions -----------------------------------------------------------------------------

    def _resume(self, positions: Sequence[FilePosition]) -> None:
        listing = Listing()
        followed = {family_of(each) for each in self._list_paths(listing)}
        others = []
        for each in positions:
            family = family_of(each.path)
            if family not in followed and not any(names_family(one, each.path) for one in self._patterns):
                others.append(each)
            elif each.finished:
                self._finished.setdefault(family, []).append(each)
            elif not each.offset and not each.head_bytes:
                # It was empty: whatever has its name now counts as new. Files that came after it are found.
                self._blank.append(each)
            else:
                self._missing.append(each)
        self._others = tuple(others)
        self._search_missing(listing)
        for each in self._missing:
            log.warning("The file %s is not there now; the search for it is repeated.", each.path)

    def _search_missing(self, listing: Listing) -> None:
        """Search for the files of stored positions: find them again, wait, or give them up."""
        if not self._missing:
            return
        relatives = frozenset(path for each in self._missing for path in listing.list_relatives(each.path))
        searched_at, before = self._searched
        if relatives == before and self._clock() - searched_at < _SEARCH_EVERY_S:
            return
        self._searched = (self._clock(), relatives)
        waiting = []
        for each in self._missing:
            found = find_again(each, listing, {tracked.position.identity for tracked in self._tracked()})
            if found is not None:
                self._track(family_of(each.path), *found)
            elif is_gone(each, listing):
                text = "The file %s is gone, and so is what was in it behind byte %d, if there was anything."
                log.warning(text, each.path, each.offset)
                self.lost.append(each)
            else:
                waiting.append(each)
        self._missing = waiting[-REMEMBERED * len(self._patterns) :]

    def _reopen_grown(self, listing: Listing) -> None:
        """Reopen a finished file that a late server process has written to; it is read before the others."""
        watched = {each.number: family for family, some in self._finished.items() for each in some[-WATCHED:]}
        some = [each for each in self._all_finished() if each.number in watched]
        for file, path, finished in find_grown(some, listing):
            self._finished[watched[finished.number]].remove(finished)
            self._track(family_of(path), file, replace(finished, path=path, finished=False))
            self._changes[family_of(path)] += 1

    def _all_finished(self) -> Iterator[FilePosition]:
        return (each for some in self._finished.values() for each in some)

    def replace_emptied(self, tracked: Tracked) -> None:
        """Restart an emptied file. What was not read of its old content is in a copy, or lost."""
        old = tracked.position
        copy = find_copy(old)
        if copy is not None:
            self._read_first(copy[0], copy[1], tracked)
        elif old.offset < tracked.status[0]:
            log.warning("The file %s was emptied; what was behind byte %d is gone.", old.path, old.offset)
        self._changes[tracked.family] += 1
        number = tracked.position.number
        tracked.position = FilePosition(
            old.path, old.device, old.inode, written_ns=old.written_ns, number=number
        )
        tracked.drained = False
        self.learn_head(tracked)

    def _read_first(self, file: LogFile, position: FilePosition, emptied: Tracked) -> None:
        """Continue in the copy where the emptied file was, under its number; later files get new numbers."""
        some = self._families[emptied.family]
        known = next((each for each in some if each.position.identity == position.identity), None)
        if known is not None:
            file.close()
            if known.position.offset:  # it is being read as a file of its own
                return
            some.remove(known)
            file = known.file
        index = some.index(emptied)
        for each in some[index:]:
            each.position = replace(each.position, number=self._next_number())
        some.insert(index, Tracked(emptied.family, file, position, grown_at=self._clock()))

    # --- the end of a file ----------------------------------------------------------------------------

    def close_file(self, tracked: Tracked) -> None:
        some = self._families[tracked.family]
        some.remove(tracked)
        if not some:
            del self._families[tracked.family]
        tracked.file.close()
        self._changes[tracked.family] += 1

    def remember(self, tracked: Tracked) -> None:
        """Remember a file as finished."""
        finished = replace(tracked.position, finished=True)
        self._finished.setdefault(tracked.family, []).append(finished)

    def _forget_finished(self, there: FilesThere) -> None:
        for family, some in self._finished.items():
            if len(some) > REMEMBERED:
                surplus = {each.number for each in some if each.identity not in there}
                surplus -= set(sorted(surplus)[-REMEMBERED:])
                self._finished[family] = [each for each in some if each.number not in surplus]


def _move(position: FilePosition, file: LogFile, path: str) -> FilePosition:
    """Return the same place in another file."""
    device, inode = file.identity
    return replace(position, path=path, device=device, inode=inode, packed=file.packed)


def _is_comparable(path: str, status: Status) -> bool:
    """Return whether a file has enough in it to be compared."""
    if not is_packed(path):
        return status[0] >= TELLING_BYTES
    file = open_log(path)
    if file is None:
        return False
    try:
        return len(file.read(0, TELLING_BYTES)) >= TELLING_BYTES
    finally:
        file.close()
