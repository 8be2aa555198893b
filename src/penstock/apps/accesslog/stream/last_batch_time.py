"""The time of the pipeline's last published batch, which shows whether it still runs.

A running pipeline publishes a batch in each interval, even one without lines, so the age of the last one
shows whether it runs, however quiet the servers are.

    Database(place).run(read_last_batch)
"""

from __future__ import annotations

from penstock.apps.accesslog.stream.table_names import SETTINGS
from penstock.stores.sql.connections.sql_sessions import Session
from penstock.stores.sql.ledger.ledger_tables import BATCHES


def read_last_batch(session: Session) -> tuple[int | None, int]:
    """Return when the last batch was published, in ms since 1970 (None: never), and how many there were."""
    if not session.has_table(SETTINGS) or not session.has_table(BATCHES):
        return None, 0
    name = session.grammar.name
    [[last, batches]] = session.execute(
        f"SELECT MAX(published_ms), SUM(batch_count) FROM {BATCHES} WHERE stream IN "
        f"(SELECT {name('value')} FROM {name(SETTINGS)} WHERE {name('name')} = 'name')"
    )
    return None if last is None else int(last), int(batches or 0)
