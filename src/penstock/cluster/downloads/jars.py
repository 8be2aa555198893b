"""Fetches jars by their coordinates, once, with the Ivy that ships inside PySpark.

Rule: a folder of jars is either complete or absent. Jars are gathered in a separate folder, checked, flushed
to disk and then renamed into place under a file lock. So a killed fetch leaves nothing that looks usable, and
two processes that fetch at the same time make one folder. If jars were written straight into the final
folder, a second process could start a broker with half of them.

    folder = fetch_jars("connector", ["org.apache.kafka:kafka-clients:3.9.1"])
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.cluster.downloads.java import find_java, find_spark_home
from penstock.cluster.processes.owned_process import follow_output, wait_for_lock
from penstock.core.errors import ClusterError
from penstock.stores.durable_files import flush_to_disk

#: Called with (steps done, total steps or None, the current item); the last call has `COMPLETE`. A step is a
#: jar found or fetched, or a megabyte of one big jar.
Progress = Callable[[int, int | None, str], None]
COMPLETE = "complete"

MANIFEST = "complete.json"
MANIFEST_VERSION = 1
#: Ivy is killed after this long without output (it gives up on a dead connection sooner), or if it takes
#: longer than the total for one coordinate. The 45 jars of a broker take it 36 s.
FETCH_SILENCE_S = 300.0
FETCH_TOTAL_S = 1_800.0
#: How long to wait for another process's fetch.
CACHE_PATIENCE_S = 1_800.0
_STEP = re.compile(r"^\s*(?:found|\[SUCCESSFUL ?\])\s+\S+#([^;\s]+);([^!\s]+)")


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One artifact, `organisation:name:revision`, with its dependencies or without."""

    organisation: str
    name: str
    revision: str
    transitive: bool = False

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        parts = text.split(":")
        if len(parts) != 3 or not all(re.fullmatch(r"[\w.-]+", part) for part in parts):
            raise ClusterError(
                "BAD_COORDINATE",
                f"{text!r} is not a coordinate.",
                hint="Write it as organisation:name:revision.",
            )
        return cls(parts[0], parts[1], parts[2])

    def __str__(self) -> str:
        return f"{self.organisation}:{self.name}:{self.revision}"


def cache_folder() -> Path:
    """Return the folder for fetched files: `PENSTOCK_CACHE`, else the user's cache folder."""
    named = os.environ.get("PENSTOCK_CACHE")
    if named:
        return Path(named)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "penstock"


def fetch_jars(
    name: str,
    coordinates: Sequence[Coordinate | str],
    progress: Progress | None = None,
    *,
    expected_jars: int | None = None,
    expected_mb: int | None = None,
    sha512: Mapping[str, str] | None = None,
) -> Path:
    """Return the folder that holds the jars of `coordinates`; fetch it first if it is missing.

    A plain string means that jar alone, without dependencies. With `sha512` (file name to hex digest) every
    fetched file must be listed and match. The expected numbers are for the progress, which counts megabytes
    if there are only a few big jars, else jars.
    """
    wanted = [Coordinate.parse(c) if isinstance(c, str) else c for c in coordinates]
    key = hashlib.sha256(repr(wanted).encode()).hexdigest()[:12]
    folder = cache_folder() / "jars" / f"{name}-{key}"
    if _is_complete(folder):
        return folder
    tell = progress or (lambda _done, _total, _item: None)
    with hold_cache(
        folder.parent, lambda: tell(0, None, "waiting for another process to finish its download")
    ) as parent:
        if _is_complete(folder):  # another process fetched it while we waited
            tell(0, None, COMPLETE)
            return folder
        for leftover in parent.glob(f".{folder.name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
        try:
            _Fetch(partial, tell, expected_jars, expected_mb).run(wanted)
            digests = {jar.name: _digest(jar) for jar in sorted(partial.iterdir())}
            if sha512 is not None:
                _compare_digests(digests, sha512)
            _write_manifest(partial, wanted, digests)
            if folder.exists():
                shutil.rmtree(folder)  # it is damaged: a jar was removed from it
            partial.rename(folder)
            flush_to_disk(parent)
            tell(1, 1, COMPLETE)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return folder


def _is_complete(folder: Path) -> bool:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return manifest["version"] == MANIFEST_VERSION and all(
            (folder / jar).stat().st_size == size for jar, size in manifest["sizes"].items()
        )
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError):
        return False


@contextlib.contextmanager
def hold_cache(parent: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """Lock this cache folder for the block and yield it, because Ivy's cache is not safe for two processes.

    `waiting` is called if another process holds the lock.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(parent / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ClusterError(
            "CACHE_NOT_WRITABLE",
            f"The cache folder {parent} cannot be written: {error.strerror}.",
            hint="Set PENSTOCK_CACHE to a folder you may write.",
            facts={"folder": str(parent)},
        ) from error
    try:
        if not wait_for_lock(lock, 0.0):
            waiting()
        if not wait_for_lock(lock, CACHE_PATIENCE_S):
            raise ClusterError(
                "CACHE_BUSY",
                f"Another process has been fetching into {parent} for more than {CACHE_PATIENCE_S:g} s.",
                hint=f"Look at it (`fuser -v {parent / '.lock'}` names it) and end it if it hangs, or set "
                "PENSTOCK_CACHE to another folder.",
                facts={"folder": str(parent), "waited_s": CACHE_PATIENCE_S},
                retriable=True,
            )
        yield parent
    finally:
        os.close(lock)


class _Fetch:
    """One fetch into a folder: it runs Ivy for each coordinate and reports progress."""

    def __init__(
        self, folder: Path, tell: Progress, expected_jars: int | None, expected_mb: int | None
    ) -> None:
        self._folder, self._tell, self._expected_mb = folder, tell, expected_mb
        # Each jar is found, then fetched.
        self._total = expected_mb or (None if expected_jars is None else 2 * expected_jars)
        self._done = 0

    def run(self, wanted: Sequence[Coordinate]) -> None:
        self._tell(0, self._total, "asking where the jars are")
        for coordinate in wanted:
            self._fetch(coordinate)

    def _fetch(self, coordinate: Coordinate) -> None:
        command = [
            *(str(find_java()), "-cp", str(find_spark_home() / "jars" / "*"), "org.apache.ivy.Main"),
            *("-cache", str(cache_folder() / "ivy")),
            *("-dependency", coordinate.organisation, coordinate.name, coordinate.revision),
            *("-retrieve", f"{self._folder}/[artifact]-[revision].[ext]"),
            *("-types", "jar", "bundle"),  # snappy and others are packaged as "bundle"
        ]
        if not coordinate.transitive:
            command.append("-notransitive")
        said: list[str] = []
        try:
            with follow_output(
                command,
                silence_s=FETCH_SILENCE_S,
                total_s=FETCH_TOTAL_S,
                look=lambda: self._weigh(coordinate),
            ) as running:
                for line in running.lines:
                    said.append(line)
                    self._count(line)
        except TimeoutError as error:
            raise ClusterError(
                "FETCH_STALLED",
                f"Fetching {coordinate} was abandoned: {error}. Ivy's last lines:\n" + "\n".join(said[-15:]),
                hint="\nCheck the network, and the proxy settings in JAVA_TOOL_OPTIONS, then try again.",
                facts={"coordinate": str(coordinate)},
                retriable=True,
            ) from error
        if running.exit_code != 0 or not any(self._folder.glob(f"{coordinate.name}-*.jar")):
            raise ClusterError(
                "FETCH_FAILED",
                f"Fetching {coordinate} failed (Ivy's exit code {running.exit_code}). Its last lines:\n"
                + "\n".join(said[-15:]),
                hint="\nCheck the network, and the proxy settings in JAVA_TOOL_OPTIONS, then try again.",
                facts={"coordinate": str(coordinate)},
                retriable=True,
            )

    def _count(self, line: str) -> None:
        step = _STEP.match(line)
        if step and self._expected_mb is None:
            self._done += 1
            done = self._done if self._total is None else min(self._done, self._total)
            self._tell(done, self._total, f"{step[1]} {step[2]}")

    def _weigh(self, coordinate: Coordinate) -> None:
        """Report how many megabytes of a big jar have arrived. Ivy writes them beside their final place."""
        if self._expected_mb is None:
            return
        place = cache_folder() / "ivy" / coordinate.organisation / coordinate.name
        size = 0
        for path in place.glob(f"*/{coordinate.name}-{coordinate.revision}.jar*"):
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                size = max(size, path.stat().st_size)
        self._tell(
            min(size // 1_000_000, self._expected_mb), self._total, f"{coordinate.name} (counted in MB)"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha512").hexdigest()


def _compare_digests(found: Mapping[str, str], expected: Mapping[str, str]) -> None:
    wrong = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if wrong:
        raise ClusterError(
            "CHECKSUM_MISMATCH",
            f"{len(wrong)} fetched file(s) are not the expected ones: {', '.join(wrong[:5])}.",
            hint="Do not use them. Remove the cache folder and fetch again.",
            facts={"files": wrong},
        )


def _write_manifest(folder: Path, wanted: Sequence[Coordinate], digests: Mapping[str, str]) -> None:
    manifest = {
        "version": MANIFEST_VERSION,
        "coordinates": [str(coordinate) for coordinate in wanted],
        "sizes": {jar: (folder / jar).stat().st_size for jar in digests},
        "sha512": dict(digests),
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in folder.iterdir():
        flush_to_disk(path)
    flush_to_disk(folder)
