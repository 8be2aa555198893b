"""The table of the options that only a direct stream has; it also takes those of a stream.

>>> DirectTable().outage_timeout_ms
900000
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.core.options.option_table import option
from penstock.core.options.option_values import parse_delay_ms

_WRONG = "OPTION_INVALID"
OUTAGE_TIMEOUT = "outageTimeout"
#: Longer than a restart of ten minutes, with time left to repeat the batch.
_OUTAGE_MS = 15 * 60 * 1000


@dataclass(frozen=True)
class DirectTable:
    """The option table of `DirectStream(options=...)`."""

    outage_timeout_ms: int = option(
        OUTAGE_TIMEOUT,
        parse_delay_ms,
        "How long a running stream waits, from the first failure on, for brokers or a database that were "
        "reachable and no longer are. Then it ends with the last failure. 0: no longer than "
        "`batch_attempts` attempts take.",
        default=_OUTAGE_MS,
        default_doc="`15m`",
        accepts=("15m", "2h", "0", "500ms"),
        rejects=(("", _WRONG), ("-1", _WRONG), ("ever", _WRONG)),
    )
