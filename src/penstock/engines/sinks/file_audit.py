"""Audits a file sink: do its batches adjoin, do their files hold the rows that were written, and do these
come from the right offsets?

Rule: as for tables, each finding names its evidence, and the report says what could not be checked. The
folder's name and `_ranges.json` are the books here. The counts in Parquet's footers and the provenance
columns are the evidence about the rows. Other formats would have to be read in full, so their rows are
not counted.

A stream may write during an audit, so a look counts only if the position was the same before and after.

    audit_files(Path("results"), None, None)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.core.audit.audit_report import (
    LEDGER,
    PROVENANCE,
    Finding,
    NotedBatch,
    NotedRange,
    Report,
    StreamFacts,
)
from penstock.core.audit.ledger_tiling import check_tiling
from penstock.core.errors import SinkError
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import TopicPartition
from penstock.core.offsets.offset_store_contract import unknown_stream
from penstock.core.offsets.stream_position import StreamPosition
from penstock.core.sinks.file_batches import StoredBatch, has_read
from penstock.engines.sinks.file_sink import OWN, RANGES, read_batch, read_note
from penstock.stores.offsets.file_store import FileOffsetStore
from penstock.stores.offsets.position_documents import write_name
from penstock.stores.sql.sink.sql_sink import PROVENANCE as COLUMNS

#: The evidence for the second kind of finding.
FOOTERS = "row counts in the files"
_LOOKS = 20


@dataclass(frozen=True)
class Seen:
    """One batch's folder. `held` is the number of rows in its files, or None if the files do not say."""

    path: Path
    batch: StoredBatch
    rows: int
    held: int | None


def is_file_sink(folder: Path) -> bool:
    return (folder / OWN).is_dir()


def audit_files(folder: Path, stream: str | None, losses: Sequence[Loss] | None) -> Report:
    """Audit all streams of the folder, or one, and return the report."""
    store = FileOffsetStore(folder / OWN / "offsets", create=False)
    streams = store.list_streams()
    if stream is not None and stream not in streams:
        raise unknown_stream(f"The file sink at {folder}", stream, streams)
    report = Report()
    for each in streams if stream is None else [stream]:
        position, seen = _look(folder, store, each)
        report += check_tiling(_make_facts(each, position, seen), losses)
        for batch in seen:
            report += _check_batch(batch)
        moves = store.list_changes(each)
        if moves:
            note = f"{each}: it was moved by hand {len(moves)} times; a move ahead leaves a gap."
            report += Report(notes=(note,))
    return report


def _look(folder: Path, store: FileOffsetStore, stream: str) -> tuple[StreamPosition, list[Seen]]:
    for _ in range(_LOOKS):
        before = _find_position(folder, store, stream)
        try:
            seen = list(_list_batches(folder, stream))
        except FileNotFoundError:
            continue  # a batch was replaced just now
        if before == _find_position(folder, store, stream):
            return before, seen
    raise SinkError(
        "SINK_IN_USE",
        f"The stream {stream} wrote a batch to {folder} each of the {_LOOKS} times it was looked at.",
        hint="Stop it and look again.",
        facts={"stream": stream},
    )


def _find_position(folder: Path, store: FileOffsetStore, stream: str) -> StreamPosition:
    """Return the position the next start will find: a batch with a folder is done, whatever is stored."""
    noted = read_note(folder / OWN / f"{write_name(stream)}.next")
    if noted is not None and (noted[0] is None or (folder / noted[0]).exists()):
        return noted[1]
    position = store.load(stream)
    return StreamPosition({}) if position is None else position


def _list_batches(folder: Path, stream: str) -> Iterator[Seen]:
    for path in sorted(folder.glob("batch=*")):
        batch = read_batch(path)
        if batch is not None and batch.stream == stream:
            found = json.loads((path / RANGES).read_text(encoding="utf-8"))
            files = list(path.glob("*.parquet"))
            is_other = any(path.glob("part-*")) and not files
            held = None if is_other else sum(pq.read_metadata(each).num_rows for each in files)
            yield Seen(path, batch, int(found["rows"]), held)


def _make_facts(stream: str, position: StreamPosition, seen: Sequence[Seen]) -> StreamFacts:
    return StreamFacts(
        stream,
        1,
        position.stands,
        tuple(NotedRange(each.path.name, 1, part) for each in seen for part in each.batch.ranges),
        # Rows of a batch that read nothing come from no range.
        tuple(NotedBatch(each.path.name, 1, each.rows, each.rows) for each in seen if each.batch.ranges),
    )


def _check_batch(seen: Seen) -> Report:
    name = seen.path.name
    if seen.held is None:
        return Report(
            unchecked=(f"{name}: its {seen.rows} rows; only Parquet files say how many they hold.",)
        )
    if seen.held != seen.rows:
        condition = "ROWS_MISSING" if seen.held < seen.rows else "ROWS_TOO_MANY"
        what = f"its files hold {seen.held} rows, and {seen.rows} were written."
        return Report(findings=(Finding(condition, name, what, FOOTERS),))
    report = Report(checked=(f"{name}: {seen.rows} rows, as written (evidence: {FOOTERS}).",))
    return report + _check_origin(seen)


def _check_origin(seen: Seen) -> Report:
    """Check whether the rows came from the offsets that the folder is named after."""
    name = seen.path.name
    files = sorted(seen.path.glob("*.parquet"))
    if not files:
        return Report()
    if not all(set(COLUMNS) <= set(pq.read_schema(each).names) for each in files):
        return Report(
            unchecked=(f"{name}: from where its rows came; it has no columns {', '.join(COLUMNS)}.",)
        )
    rows = pa.concat_tables([pq.read_table(each, columns=list(COLUMNS), partitioning=None) for each in files])
    topic, partition, offset = COLUMNS
    found = rows.group_by([topic, partition]).aggregate(
        [(offset, "min"), (offset, "max"), (offset, "count"), (offset, "count_distinct")]
    )
    findings, notes = [], []
    for each in found.to_pylist():
        whose = TopicPartition(str(each[topic]), int(each[partition] if each[partition] is not None else -1))
        first, last = each[f"{offset}_min"], each[f"{offset}_max"]
        if not has_read(seen.batch, whose, first, last):
            what = f"rows from {whose} at offsets {first} to {last}, which the batch has not read."
            findings.append(Finding("OFFSETS_OUTSIDE", name, what, f"{PROVENANCE} and {LEDGER}"))
        twice = each[f"{offset}_count"] - each[f"{offset}_count_distinct"]
        if twice:
            notes.append(f"{name}: {twice} rows of {whose} have an offset that another row has, too.")
    checked = () if findings else (f"{name}: all rows came from its offsets (evidence: {PROVENANCE}).",)
    return Report(tuple(findings), checked, tuple(notes))
