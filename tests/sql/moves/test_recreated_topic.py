"""A topic was deleted and recreated: it is read as another log, and no row of the old one is lost."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.cli import main
from penstock.core.client.client_settings import ClientSettings
from penstock.core.model import TopicPartition
from penstock.core.offsets.stream_position import StreamPosition
from penstock.kafka.metadata.topic_admin import create_topic, delete_topic
from penstock.kafka.reading.kafka_log_view import KafkaLogView
from penstock.stores.offsets.sink_ledger_store import SinkOffsetStore
from penstock.stores.sql import SqlSink, Table, create_tables
from tests.sql.databases import OwnDatabase, make_file_database
from tests.support.kafka.client_settings import settings_of
from tests.support.kafka.topic_filling import produce

OLD, NEW = 6, 9
YES = ("--yes", "--watch", "0s")


class Shop:
    """A stream that read a whole topic, into rows and sums, before the topic was recreated."""

    def __init__(self, kafka: Any, name: str, database: OwnDatabase, capsys: Any) -> None:
        self.client: ClientSettings = settings_of(kafka.bootstrap)
        self.brokers = ("--bootstrap-server", kafka.bootstrap)
        self.name, self.database, self.capsys = name, database, capsys
        self.sink = SqlSink(
            database.url,
            Table("lines", provenance=True),
            Table("sums", mode="merge", key=("name",), add=("n",)),
        )
        sums = pa.schema([("name", pa.string()), ("n", pa.int64())])
        create_tables(self.sink, {"lines": pa.schema([("seq", pa.int64())]), "sums": sums})
        produce(kafka.bootstrap, name, ["old"] * OLD)
        self.read()
        delete_topic(self.client, name)
        create_topic(self.client, name)
        produce(kafka.bootstrap, name, ["new"] * NEW)

    def stand(self, offset: int, topic_id: bytes) -> StreamPosition:
        return StreamPosition({TopicPartition(self.name, 0): offset}, {self.name: topic_id})

    def read(self) -> None:
        """Run the stream until it has read everything."""
        with closing(KafkaLogView(self.client)) as view:
            known = view.describe([self.name])[self.name].topic_id
            end = view.latest([TopicPartition(self.name, 0)])[TopicPartition(self.name, 0)]
        assert known is not None
        with closing(self.sink.open("s")) as writer:
            before = writer.position or self.stand(0, known)
            start = before.offsets[TopicPartition(self.name, 0)]
            if start == end:
                return
            lines = {
                "seq": range(start, end),
                "penstock_topic": [self.name] * (end - start),
                "penstock_partition": pa.array([0] * (end - start), pa.int32()),
                "penstock_offset": range(start, end),
            }
            rows = {"lines": pa.table(lines), "sums": pa.table({"name": ["all"], "n": [end - start]})}
            writer.write(rows, before, self.stand(end, known))

    def offsets(self, verb: str, *more: str, code: int = 0) -> str:
        self.capsys.readouterr()
        asked = ["offsets", verb, "--at", f"sink:{self.database.url}", "s", *more, *self.brokers]
        got = main(asked)
        printed = self.capsys.readouterr()
        assert got == code, printed
        return str(printed.err if code else printed.out)

    def audit(self, *more: str) -> dict[str, Any]:
        self.capsys.readouterr()
        code = main(["audit", self.database.url, *more, "--json", *self.brokers])
        told: dict[str, Any] = json.loads(self.capsys.readouterr().out)
        assert code == bool(told["findings"])
        return told

    def count(self) -> tuple[int, int]:
        """Return the number of rows, and what the sums have counted."""
        (lines,), (sums,) = (
            self.database.run(f"SELECT {each}") for each in ("COUNT(*) FROM lines", "SUM(n) FROM sums")
        )
        return int(lines[0]), int(sums[0])


@pytest.fixture
def shop(
    kafka: Any,
    topic: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Shop:
    return Shop(kafka, topic(1), make_file_database(tmp_path), capsys)


def test_the_new_topic_is_read_from_its_beginning_and_every_record_counts_once(shop: Shop) -> None:
    """The advice of `why` can be followed, and the audit agrees with the sums."""
    shop.capsys.readouterr()
    assert main(["why", "s", "--sink", shop.database.url, "--watch", "0s", *shop.brokers]) == 1
    told = shop.capsys.readouterr().out
    assert "[TOPIC_RECREATED]" in told
    assert "`penstock offsets rewind --to-start`" in told
    for asked in (("--by", "2"), ("--to-offset", "0"), ("--to-end",)):
        refused = shop.offsets("rewind", *asked, code=1)
        assert "[LOG_OF_ANOTHER_TOPIC]" in refused
        assert "rewind --to-start" in refused
    for more in ((), YES):
        told = shop.offsets("rewind", "--to-start", *more)
        assert "another topic" in told
    told_before = shop.audit("--re-read")
    assert told_before["findings"] == []
    assert "read again yet" not in " ".join(told_before["notes"])  # the old records never come again
    shop.read()
    assert shop.count() == (OLD + NEW, OLD + NEW)
    assert shop.audit()["findings"] == []
    reread = shop.audit("--re-read")
    assert reread["findings"] == []
    assert any("of another log" in each and f"[0, {OLD})" in each for each in reread["unchecked"])
    assert any(f"{NEW - OLD} records of [{OLD}, {NEW})" in each for each in reread["checked"])


def test_nothing_is_deleted_that_only_the_old_topic_had(shop: Shop) -> None:
    """This holds before and after the new one is read, with and without --yes."""
    for more in ((), YES):
        refused = shop.offsets("rewind", "--to-start", "--rebuild", "sums", *more, code=1)
        assert "[REBUILD_INCOMPLETE]" in refused
        assert "another log" in refused
    assert "Deletes 0 rows of lines" in shop.offsets("rewind", "--to-start", "--delete-from", "lines", *YES)
    shop.read()
    for more in ((), YES):
        for table in ("sums", "lines"):
            refused = shop.offsets("rewind", "--to-start", "--rebuild", table, *more, code=1)
            assert "[REBUILD_INCOMPLETE]" in refused
        asked = ("--to-start", "--delete-from", "lines", "--sums-count-twice")
        assert "[ROWS_OF_ANOTHER_LOG]" in shop.offsets("rewind", *asked, *more, code=1)
    assert shop.count() == (OLD + NEW, OLD + NEW)
    # Beyond the old topic's end, all rows belong to the new topic.
    asked = ("--by", "2", "--delete-from", "lines", "--sums-count-twice")
    assert "Deletes 2 rows of lines" in shop.offsets("rewind", *asked)


def test_an_adopted_topic_is_taken_at_its_word_and_nothing_is_deleted_on_it(shop: Shop) -> None:
    """Only a person knows whether it holds the same records, and people err: here the records are others."""
    shop.offsets("adopt", "--topic", shop.name, *YES)
    refused = shop.offsets("rewind", "--to-start", code=1)
    assert "[SUMS_WOULD_COUNT_TWICE]" in refused
    assert "adopted" in refused
    assert "--rebuild" not in refused
    told = shop.offsets("rewind", "--to-start", "--sums-count-twice", *YES)
    assert "adopted" in told
    shop.read()
    assert shop.count() == (OLD + NEW, OLD + NEW)
    for more in ((), ("--re-read",)):
        (found,) = shop.audit(*more)["findings"]
        assert found["condition"] == "SUMS_COUNT_TWICE"
        assert "adopted" in found["what"]
        assert "--rebuild" not in found["what"]
    for more in ((), YES):
        asked = ("--to-start", "--rebuild", "sums", "--delete-from", "lines")
        refused = shop.offsets("rewind", *asked, *more, code=1)
        assert "[REBUILD_INCOMPLETE]" in refused
        assert "adopted" in refused
        asked = ("--to-start", "--delete-from", "lines", "--sums-count-twice")
        assert "[ROWS_OF_ANOTHER_LOG]" in shop.offsets("rewind", *asked, *more, code=1)
    assert shop.count() == (OLD + NEW, OLD + NEW)
    assert SinkOffsetStore(shop.database.url).list_changes("s")[0].verb == "adopt"
