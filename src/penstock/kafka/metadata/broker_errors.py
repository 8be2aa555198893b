"""What a broker's error code means: whether to ask again, and what to report to the operator.

Rules: a refusal's condition is Kafka's own name for the code; it names the request, the broker and
the resource (topic-partition, group), so that a missing right never looks like missing data. Why not
raise kafka-python's exceptions: they carry no facts and do not say what to do.

>>> str(refusal(29, "ListOffsets", "b:9092", "topic orders")).split(".")[0]
'[TOPIC_AUTHORIZATION_FAILED] b:9092 refused ListOffsets for topic orders'
"""

from __future__ import annotations

from penstock.core.errors import BrokerError
from penstock.kafka.transport.protocol_messages import error_name

UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5

#: Codes that mean "you asked the wrong broker": look the leader up again.
STALE_ROUTE = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 75, 80, 83, 100, 103})
#: Codes of states that pass on their own: timeouts, moving coordinators, throttling, unsettled offsets.
PASSING = frozenset({7, 14, 15, 16, 19, 20, 41, 51, 70, 71, 78, 88, 89})
RETRIABLE = STALE_ROUTE | PASSING

_HINTS = {
    "TOPIC_AUTHORIZATION_FAILED": "Grant this user the right (Describe and Read to read, Write to write).",
    "GROUP_AUTHORIZATION_FAILED": "Grant this user Read on the consumer group.",
    "CLUSTER_AUTHORIZATION_FAILED": "Grant this user the right on the cluster.",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "Grant this user Write on the transactional id.",
    "UNKNOWN_TOPIC_OR_PARTITION": "Check the name and that the topic was not deleted.",
    "TOPIC_ALREADY_EXISTS": "Use another name, or the existing topic.",
    "INVALID_TOPIC_EXCEPTION": "Topic names have 1 to 249 letters, digits, dots, dashes and underscores.",
    "MESSAGE_TOO_LARGE": "Write smaller records, compress them, or raise max.message.bytes of the topic.",
    "INVALID_TIMESTAMP": "Correct the time of the record (milliseconds since 1970), or change how far from "
    "now the topic lets it be (message.timestamp.before.max.ms, message.timestamp.after.max.ms).",
    "INVALID_REPLICATION_FACTOR": "Ask for no more replicas than there are brokers.",
    "UNSUPPORTED_VERSION": "The broker's features do not allow this request.",
}


def refusal(code: int, request: str, broker: str, resource: str, detail: str | None = None) -> BrokerError:
    """Return the error for a code that is not worth a retry, or that was retried long enough."""
    name = error_name(code)
    what = f"{broker} refused {request} for {resource}"
    if name not in _HINTS:
        what += f" with error {code}"
    if detail:
        what += f" ({detail.strip().rstrip('.')})"
    return BrokerError(
        name,
        f"{what}.",
        hint=_HINTS.get(name, "Look at the broker's log around this time."),
        facts={"code": code, "request": request, "broker": broker, "resource": resource},
        retriable=code in RETRIABLE,
    )
