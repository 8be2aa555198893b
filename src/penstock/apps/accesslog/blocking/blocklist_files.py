"""Blocklist files that are replaced atomically: a reader finds the old one or the new one, never a part.

Rule: a list is written to a temporary file beside it, flushed to disk and renamed; then the folder is
flushed. A kill in between leaves at most a hidden file, which a later writer removes. Files are written when
the list has changed, not at each commit, because their modification time may trigger a reload of a web
server.

    writer = BlocklistWriter("results.db", "/var/lib/penstock", Gate.of(allow=["10.0.0.0/8"]), ("nftables",))
    writer.refresh()      # after each commit, and regularly: bans expire without a decision
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.apps.accesslog.blocking.blocklist_changes import Listed, advance, read_next_end
from penstock.apps.accesslog.blocking.blocklist_formats import find_format
from penstock.apps.accesslog.blocking.blocklists import Gate
from penstock.apps.accesslog.stream.table_names import ORDERS
from penstock.core.errors import SinkError
from penstock.core.options.storage_addresses import GivenPlace, as_place
from penstock.stores.durable_files import flush_to_disk, write_to_disk
from penstock.stores.sql.connections.sql_sessions import Database, Session

_ENDING = ".penstock-new"
#: A hidden file that is older than this was left behind by a writer that was killed.
_LEFT_BEHIND_S = 3600.0


class BlocklistWriter:
    """Keeps the files of a folder equal to the list in the database. For one thread."""

    def __init__(
        self,
        place: GivenPlace,
        directory: str | os.PathLike[str],
        gate: Gate,
        formats: Sequence[str] = ("text", "json"),
        *,
        clock_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        place = as_place(place)
        self.place = place
        self.directory = Path(directory)
        self._formats = [find_format(name) for name in formats]
        self._gate, self._clock_us = gate, clock_us
        self._written: Listed | None = None
        self._next_end: int | None = None
        self._orders: tuple[object, ...] = ()
        self._is_behind = True

    def refresh(self, *, has_new_decisions: bool = True) -> bool:
        """Bring the files up to date; return whether any was written.

        Without new decisions this is one small query, unless a ban has ended since, orders have changed, a
        file is gone, or the last attempt has failed.
        """
        now_us = self._clock_us()
        is_behind = self._is_behind or not self._has_all_files()
        # If anything below fails, the next call tries again.
        self._is_behind = True
        orders = Database(self.place).run(_count_orders)
        has_ended = self._next_end is not None and self._next_end <= now_us
        changed = False
        if is_behind or has_new_decisions or has_ended or orders != self._orders:
            listed = advance(self.place, now_us=now_us, known=self._written)
            if is_behind or self._written is None or listed.cursor != self._written.cursor:
                changed = self._write(listed, now_us)
            self._written, self._next_end, self._orders = listed, read_next_end(listed), orders
        self._is_behind = False
        return changed

    def _has_all_files(self) -> bool:
        """Return whether all files are there: somebody may have removed one, or the folder."""
        return all(os.path.exists(self.directory / each.file_name) for each in self._formats)

    def _write(self, listed: Listed, now_us: int) -> bool:
        bans = self._gate.apply(listed.bans)
        changed = False
        for each in self._formats:
            # No ban has ended: `listed` was made for this moment.
            content = each.render(bans, listed.cursor, now_us).content
            changed |= write_whole(self.directory / each.file_name, content, even_if_equal=each.has_timeouts)
        return changed


def _count_orders(session: Session) -> tuple[object, ...]:
    if not session.has_table(ORDERS):
        return ()
    name = session.grammar.name
    return session.execute(f"SELECT COUNT(*), MAX({name('until')}) FROM {name(ORDERS)}")[0]


def demand_place(folder: Path) -> None:
    """Create the folder if it is missing; raise BLOCKLIST_NOT_WRITTEN if no file can be written there."""
    probe = folder / f".place{_ENDING}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _replace(probe, b"")
        probe.unlink()
    except OSError as error:
        raise _make_refusal(folder, error) from error


def write_whole(path: Path, content: bytes, *, even_if_equal: bool = False) -> bool:
    """Replace a file in one step; return whether that was needed. Create its folder if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_left_behind(path)
        if not even_if_equal and _has_content(path, content):
            return False
        _replace(path, content)
    except OSError as error:
        raise _make_refusal(path, error) from error
    return True


def _make_refusal(path: Path, error: OSError) -> SinkError:
    is_file = isinstance(error, FileExistsError | NotADirectoryError)
    reason = "its folder is a file" if is_file else error.strerror or str(error)
    return SinkError(
        "BLOCKLIST_NOT_WRITTEN",
        f"The blocklist {path} could not be written: {reason}.",
        hint="Check the folder, its permissions and its free space. The old file is unchanged.",
        facts={"path": str(path)},
        retriable=True,
    )


def _has_content(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except FileNotFoundError:
        return False


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}{_ENDING}")
    # An earlier process with the same id may have left one.
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        write_to_disk(os.open(beside, flags, 0o644), content)
        os.replace(beside, path)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    flush_to_disk(path.parent)


def _remove_left_behind(path: Path) -> None:
    for each in path.parent.glob(f".{path.name}.*{_ENDING}"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - each.lstat().st_mtime > _LEFT_BEHIND_S:
                each.unlink()
