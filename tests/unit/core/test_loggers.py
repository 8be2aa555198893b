"""One event is one line of a log, whatever hostile input is in topics, paths, answers and records."""

from __future__ import annotations

import io
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.apps.accesslog.blocking import enforcement_api
from penstock.apps.accesslog.shipping import followed_files
from penstock.core.errors import BrokerError, DataLossError
from penstock.core.loggers import get_logger, in_stream
from penstock.core.losses.loss_ranges import Loss
from penstock.core.model import TopicPartition
from penstock.core.options.batch_options import parse_batch_options
from penstock.engines.reading.loss_book import LossBook
from penstock.engines.source.data_source import _prepare
from penstock.kafka.reading.kafka_reader import KafkaReader
from penstock.kafka.transport.deadlines import Deadline
from penstock.kafka.transport.retries import Attempts
from penstock.stores.offsets.commit_thread import CommitThread

FORGED = "WARNING penstock [FORGED] all is well"
HOSTILE = [
    f"a{each}{FORGED}"
    for each in (
        *("\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"),
        *("\x00", "\x07", "\x08", "\x7f", "\x9b31m", "\x1b[2J", "\x1b]0;title\x07", "\x1b]52;c;aGk=\x07"),
        *("\x1b]8;;http://x.example\x07", "\u202e", "\u2066", "\u200b", "\ud800"),
    )
]


@pytest.fixture
def lines() -> Iterator[Callable[[], list[str]]]:
    """Return a function that lists the lines of an ordinary handler with an ordinary formatter."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("penstock")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lambda: written.getvalue().removesuffix("\n").splitlines()
    logger.removeHandler(handler)
    logger.setLevel(level)


def lose(text: str) -> None:
    LossBook(None).keep([Loss("PARTITION_GONE", text, 0, 1, 2, None, f"{text}: 1 offset is lost.")])


def step_over(text: str) -> None:
    KafkaReader().step_over(DataLossError("OFFSET_OUT_OF_RANGE", f"{text}-0: gone.", hint="Look."))


def try_again(text: str) -> None:
    with Attempts(Deadline.after_ms(1000, "x"), "an answer", 1).forgiving():
        raise BrokerError("BROKER_SAID", f"The broker says: {text}.", retriable=True)


def fail_to_commit(text: str) -> None:
    def commit(_what: Any) -> None:
        raise BrokerError("COMMIT_REFUSED", f"The broker says: {text}.", retriable=True)

    commits: CommitThread[dict[Any, int]] = CommitThread(commit, text)
    commits.offer({TopicPartition("t", 0): 1})
    commits.flush(10.0)


def find_no_file(text: str) -> None:
    followed_files._warn_once(f"/logs/{text}", "Permission denied")


def fail_to_answer(text: str) -> None:
    try:
        raise ValueError(f"GET {text}")
    except ValueError:
        enforcement_api._Server.handle_error(object(), None, None)  # type: ignore[arg-type]


def warn_about_options(text: str) -> None:
    options = parse_batch_options(
        {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "columns": "value"}, unique="u"
    )
    warned = replace(options, warnings=(f"`{text}` has no effect in a batch read.",))
    _prepare(warned, StructType([StructField("value", BinaryType())]))


PATHS = [lose, step_over, try_again, fail_to_commit, find_no_file, fail_to_answer, warn_about_options]


@pytest.mark.parametrize("log", PATHS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_what_strangers_send_makes_no_line_of_its_own(
    log: Callable[[str], None], text: str, lines: Callable[[], list[str]]
) -> None:
    """S34, S33: through the code that logs it; the text is there, and it is one printable line."""
    followed_files._warn_once.cache_clear()
    log(text)
    (line,) = lines()
    assert line.isprintable()
    assert FORGED in line
    assert not line.startswith(FORGED)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_traceback_is_folded_into_the_line_of_its_event(text: str, lines: Callable[[], list[str]]) -> None:
    """S34: this includes our own error whose cause has a message with the content of a record."""
    logger = get_logger("penstock.tests.folding")
    try:
        try:
            raise ValueError(text)
        except ValueError as cause:
            raise DataLossError("RECORD_BAD", f"A record holds {text}.") from cause
    except DataLossError:
        logger.exception("Batch %s failed.", text)
    (line,) = lines()
    assert line.isprintable()
    assert "ValueError" in line
    assert "[RECORD_BAD]" in line
    assert Path(__file__).name in line


def test_the_condition_of_an_error_is_a_field_of_its_record(caplog: pytest.LogCaptureFixture) -> None:
    """S34: for handlers that write fields; the text begins with it too."""
    logger = get_logger("penstock.tests.fields")
    logger.warning("Again: %s", BrokerError("BROKER_TIMEOUT", "Too late."))
    logger.warning("%(what)s", {"what": "nothing of ours"})
    assert [getattr(record, "condition", "") for record in caplog.records] == ["BROKER_TIMEOUT", None]
    assert caplog.messages == ["Again: [BROKER_TIMEOUT] Too late.", "nothing of ours"]


def test_a_text_that_cannot_be_made_does_not_end_the_caller() -> None:
    """Plain logging reports such an event and continues; our filter must not raise either."""

    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    record = logging.LogRecord("penstock.some", logging.INFO, __file__, 1, "%s", (Broken(),), None)
    assert get_logger("penstock.some").filter(record)
    assert record.args


def test_a_line_says_which_stream_it_is_about(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else would distinguish two streams in one program. The record has it as a field too."""
    logger = get_logger("penstock.tests.streams")
    with in_stream("visits"):
        logger.warning("Batch %d failed.", 3)
        with in_stream(""):  # a stream without a name does not mention that of another
            logger.warning("Again.")
    logger.warning("No stream.")
    assert caplog.messages == ["visits: Batch 3 failed.", "visits: Again.", "No stream."]
    assert [getattr(record, "stream", "") for record in caplog.records] == ["visits", "visits", None]


def test_a_program_that_configures_no_logging_gets_lines_with_their_time() -> None:
    """Python then writes warnings to stderr as they are. If a program has a format, ours adds nothing."""
    program = """
import logging, sys
from penstock.core.loggers import get_logger, in_stream
with in_stream("visits"):
    get_logger("penstock.some").warning("It waits.")
    logging.basicConfig(format="%(message)s")
    get_logger("penstock.some").warning("It waits.")
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bare, formatted = ended.stderr.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ WARNING visits: It waits\.", bare)
    assert formatted == "visits: It waits."
