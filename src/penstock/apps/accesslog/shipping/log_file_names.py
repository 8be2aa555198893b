"""Names of log files: which ones belong to one log, which ones rotation gave, and what is on the disk now.

Rule: in one look, each folder is read once and each file examined once, however many logs the folder holds.

>>> family_of("/var/log/apache2/access.log.2.gz"), family_of("/var/log/apache2/access.log-20260131")
(('/var/log/apache2', 'access.log'), ('/var/log/apache2', 'access.log'))
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
import stat
from collections.abc import Iterable, Sequence

_PACKED = ".gz"
#: What rotation puts behind a name: a number, a date, a date and a time.
_ROTATED = re.compile(
    r"[.-](?:\d{1,4}|\d{8}(?:[.-]?\d{2,6})?|\d{4}-\d{2}-\d{2}(?:[-_T.]\d+)*|\d{9,10})$"
    r"|[.-](?:\d{8}(?:-\d+)?|\d{4}-\d{2}-\d{2})(?=\.log$)"
)
Family = tuple[str, str]
FileId = tuple[int, int]
Status = tuple[int, int]  # size, time of the last write
FilesThere = dict[FileId, tuple[str, Status]]


def is_packed(path: str) -> bool:
    return path.endswith(_PACKED)


@functools.lru_cache(maxsize=1 << 16)
def family_of(path: str) -> Family:
    """Return the folder and the name without what rotation adds: files of one log, one after another."""
    folder, name = os.path.split(path)
    name = name.removesuffix(_PACKED)
    return folder, _ROTATED.sub("", name) or name


def is_rotated(path: str) -> bool:
    """Return whether the name is one that rotation gives."""
    return os.path.basename(path) != family_of(path)[1]


def names_family(pattern: str, path: str) -> bool:
    """Return whether a pattern means this file, or the log whose rotated file it is."""
    if not glob.has_magic(pattern):
        return pattern == path or family_of(pattern) == family_of(path)
    meant = (path, path.removesuffix(_PACKED), os.path.join(*family_of(path)))
    return any(_matches(pattern.split(os.sep), each.split(os.sep)) for each in meant)


def find_left_out(theirs: Iterable[str], mine: Sequence[str]) -> list[str]:
    """Return which of `theirs` match files that none of `mine` matches. All are absolute paths."""

    def is_mine(path: str) -> bool:
        return any(names_family(each, path) for each in mine)

    left = []
    for pattern in theirs:
        paths = glob.glob(pattern, recursive=True) if glob.has_magic(pattern) else [pattern]
        if pattern not in mine and not (paths and all(is_mine(path) for path in paths)):
            left.append(pattern)
    return left


def _matches(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether `glob` would find the path: `*` ends at a folder, `**` is any number of folders."""
    if not pattern or not path:
        return not pattern and not path
    if pattern[0] == "**":
        return any(_matches(pattern[1:], path[begin:]) for begin in range(len(path)))
    return fnmatch.fnmatchcase(path[0], pattern[0]) and _matches(pattern[1:], path[1:])


class Listing:
    """What is on the disk at one look. Answers are cached: make a new listing to look again."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[Family, list[str]]] = {}
        self._stats: dict[str, os.stat_result | None] = {}

    def list_relatives(self, path: str) -> list[str]:
        """Return all existing files of the same family, the one that was written last at the end."""
        family = family_of(path)
        return self.sort_by_age(self._read_folder(family[0]).get(family, ()))

    def sort_by_age(self, paths: Iterable[str]) -> list[str]:
        """Return the oldest first; of equally old ones, the higher number, which was rotated further."""
        aged = [(found.st_mtime_ns, path) for path in paths if (found := self.stat(path)) is not None]
        if len(aged) > 1:
            aged.sort(key=lambda pair: _in_parts(pair[1]), reverse=True)
            aged.sort(key=lambda pair: pair[0])
        return [path for _, path in aged]

    def identify(self, paths: Iterable[str]) -> FilesThere:
        """Return the files that these names mean; if one file has several names, with the first."""
        there: FilesThere = {}
        for path in paths:
            found = self.stat(path)
            if found is not None:
                there.setdefault((found.st_dev, found.st_ino), (path, (found.st_size, found.st_mtime_ns)))
        return there

    def stat(self, path: str) -> os.stat_result | None:
        """Return the status of a regular file; None if it is not one or cannot be reached now."""
        if path not in self._stats:
            try:
                found = os.stat(path)
                self._stats[path] = found if stat.S_ISREG(found.st_mode) else None
            except OSError:
                self._stats[path] = None
        return self._stats[path]

    def _read_folder(self, folder: str) -> dict[Family, list[str]]:
        if folder not in self._folders:
            families: dict[Family, list[str]] = {}
            try:
                names = os.listdir(folder or ".")
            except OSError:  # gone, or not reachable now
                names = []
            for name in names:
                path = os.path.join(folder, name)
                families.setdefault(family_of(path), []).append(path)
            self._folders[folder] = families
        return self._folders[folder]


@functools.lru_cache(maxsize=1 << 16)
def _in_parts(path: str) -> list[tuple[int, str]]:
    """Return the parts of a name, with digits as numbers, so that 10 sorts behind 9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", path)]
