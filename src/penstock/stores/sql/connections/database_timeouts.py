"""How long anything that asks a database waits. How long an outage is waited out is in `database_outages`.

Rule: these are read where they are used, as `database_timeouts.LOCK_TIMEOUT_S`, so that a test can change one
for all.
"""

from __future__ import annotations

#: How long to wait for a connection, for a lock, and for a server's answer.
CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_S = 30
ANSWER_TIMEOUT_S = 120
#: How long a statement that moves the rows of a whole batch may take.
BULK_TIMEOUT_S = 3600
#: How long our open transaction may be idle before the server ends it, so that a writer that was suspended
#: does not hold its locks forever. Between steps we do next to nothing.
IDLE_TIMEOUT_S = 60
