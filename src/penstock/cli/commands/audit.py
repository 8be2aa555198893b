"""Check results against the offsets they came from: were all records written, and each one once?

penstock audit results.db
penstock audit postgresql://me@db.example/stats visits --losses losses.db
penstock audit results.db visits --re-read --bootstrap-server b:9092
penstock audit results.db errors --re-read --filters
penstock audit results.db orders --re-read --set isolation.level=read_committed
penstock audit results.db visits --table visits_copy --json
penstock audit results/ visits

The database is one that a SQL sink writes to, or the folder of a file sink; its streams may keep running
(in an SQLite file a publish waits until the audit has read, 30 s at most: stop the stream if the file is
big). --re-read reads the log again and checks that each record has its row; for a stream that leaves out
records on purpose say --filters: then only rows without a record are findings. If the stream reads committed
records only, add --set isolation.level=read_committed: records of aborted transactions have no row.

Exit code: 0 nothing found, 1 something found, 2 could not look. The report says what was checked, by which
evidence, and what could not be checked. Instead of an address with a password write ${env:NAME} or
${file:/path}.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from penstock.cli.shared.kafka_arguments import add_connection_arguments, add_json_argument, connect
from penstock.cli.shared.option_texts import resolve
from penstock.cli.shared.terminal import complain, count, escape, say
from penstock.core.audit.audit_report import LEDGER_ALONE, Report, Reread, StreamFacts, TableFacts
from penstock.core.audit.ledger_tiling import check_tiling
from penstock.core.audit.replaced_logs import list_current, list_lost
from penstock.core.audit.shared_sums import check_sharing
from penstock.core.audit.skipped_ranges import check_gaps
from penstock.core.audit.table_audit import check_reread, check_table
from penstock.core.audit.tables_after_rewinds import (
    check_repeats,
    intersect_ranges,
    list_awaited,
    subtract_ranges,
    unite_ranges,
)
from penstock.core.errors import OptionError, PenstockError
from penstock.core.losses.loss_ranges import Loss
from penstock.core.options.storage_addresses import FilePlace, Place, parse_place

JSON_VERSION = 1
_COULD_NOT_LOOK = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "database", metavar="DATABASE", help="x.db, postgresql://..., mysql://... or a file sink's folder"
    )
    parser.add_argument("stream", metavar="STREAM", nargs="?", help="one stream; without it all of them")
    parser.add_argument(
        "--table", action="append", default=[], metavar="NAME", help="also a table the ledger does not name"
    )
    parser.add_argument(
        "--losses", metavar="PLACE", default=None, help="the loss ledger, which explains gaps"
    )
    parser.add_argument(
        "--re-read", action="store_true", help="read the log again and compare it offset by offset"
    )
    parser.add_argument(
        "--filters",
        action="store_true",
        help="with --re-read: the stream leaves records out on purpose; one without a row is not a finding",
    )
    add_json_argument(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    try:
        report = _audit(arguments)
    except PenstockError as error:
        complain(str(error))
        return _COULD_NOT_LOOK
    if arguments.json:
        say(_write_json(report))
    else:
        for line in _write_lines(report):
            say(escape(line))
    return 1 if report.findings else 0


def _audit(arguments: argparse.Namespace) -> Report:
    from penstock.engines.sinks.file_audit import audit_files, is_file_sink
    from penstock.engines.sinks.file_sink import OWN
    from penstock.stores.sql.audit.audit_facts import gather_facts

    if arguments.filters and not arguments.re_read:
        raise OptionError(
            "FILTERS_WITHOUT_RE_READ",
            "--filters says which records may lack a row, and only --re-read looks for them.",
            hint="Add --re-read, or leave --filters out.",
        )
    address = resolve("DATABASE", arguments.database)
    losses = None if arguments.losses is None else _read_losses(resolve("--losses", arguments.losses))
    if is_file_sink(Path(address)):
        if arguments.re_read or arguments.table:
            raise OptionError(
                "OPTION_NOT_FOR_FILES",
                "--re-read and --table are for databases; this is the folder of a file sink.",
                hint="Leave them out.",
            )
        return audit_files(Path(address), arguments.stream, losses)
    place = parse_place(address.removeprefix("sink:"))
    if isinstance(place, FilePlace) and Path(place.path).is_dir():
        raise OptionError(
            "NOT_A_SINK",
            f"{place} is a folder, and no file sink has written to it: it has no {OWN} in it.",
            hint="Name the folder that a FileSink writes to, or the database of a SqlSink. For a stream that "
            "keeps its offsets here, `penstock offsets show --at FOLDER` shows where it stands.",
            facts={"place": str(place)},
        )
    streams, others, tables = gather_facts(place, arguments.stream, arguments.table)
    report = Report()
    for stream in streams:
        report += check_tiling(stream, losses) + check_repeats(stream, losses) + check_gaps(stream)
    report += check_sharing(streams, others, losses)
    for table in tables:
        report += check_table(table)
    if arguments.re_read:
        for reread in _read_again(arguments, place, streams, tables):
            report += check_reread(reread, leaves_out=arguments.filters)
    else:
        report += Report(unchecked=("The log itself, which was not read again (--re-read).",))
    return report


def _read_again(
    arguments: argparse.Namespace, place: Place, streams: list[StreamFacts], tables: list[TableFacts]
) -> Iterator[Reread]:
    from penstock.cli.shared.compilation_progress import compile_decoding
    from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
    from penstock.stores.sql.audit.audit_facts import find_table
    from penstock.stores.sql.audit.log_rereading import reread_partition

    client, store = connect(arguments), SinkOffsetStore(place)
    compile_decoding()
    for table in tables:
        if table.kept is None:
            continue  # reported already: its rows do not say where they came from
        mine = [each for each in streams if each.stream in table.streams]
        positions = [position for each in mine if (position := store.load(each.stream)) is not None]
        topic_ids = {topic: known for each in positions for topic, known in each.topic_ids.items()}
        current = [each for stream in mine for each in list_current(stream.ranges, stream.changes)]
        lost = [each for stream in mine for each in list_lost(stream.ranges, stream.changes)]
        read = unite_ranges(each.range for each in current)
        mixed = intersect_ranges(unite_ranges(lost), read)
        regions, awaited = subtract_ranges(read, mixed), list_awaited(mine)
        for partition in sorted({each.topic_partition for each in lost}):
            gone = tuple(each for each in unite_ranges(lost) if each.topic_partition == partition)
            yield Reread(table.name, partition, of_other_log=gone)
        for partition in sorted({each.topic_partition for each in regions}):
            yield reread_partition(
                place,
                find_table(place, table.name),
                partition,
                [each for each in regions if each.topic_partition == partition],
                client,
                topic_ids.get(partition.topic),
                subtract_ranges([each for each in awaited if each.topic_partition == partition], mixed),
            )


def _read_losses(address: str) -> list[Loss]:
    from penstock.stores.loss_ledger import open_loss_ledger

    return [each.loss for each in open_loss_ledger(address, create=False).read()]


# --- what is printed ----------------------------------------------------------------------------------------


def _write_lines(report: Report) -> Iterator[str]:
    for title, lines in (
        ("Found", [str(each) for each in report.findings]),
        ("Checked", report.checked),
        ("To know", report.notes),
        ("Not checked", report.unchecked),
    ):
        if lines:
            yield f"{title}:"
            yield from (f"  {line}" for line in lines)
    yield LEDGER_ALONE
    yield count(len(report.findings), "finding") + "." if report.findings else "Nothing found."


def _write_json(report: Report) -> str:
    content = {
        "version": JSON_VERSION,
        "findings": [
            {
                "condition": each.condition,
                "subject": each.subject,
                "generation": each.generation,
                "what": each.what,
                "evidence": each.evidence,
            }
            for each in report.findings
        ],
        "checked": report.checked,
        "notes": report.notes,
        "unchecked": report.unchecked,
    }
    return json.dumps(content, indent=1)
