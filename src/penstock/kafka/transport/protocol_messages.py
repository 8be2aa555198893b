"""Kafka's requests and responses as objects: with `group_member`, the only module that imports kafka-python.

Rule: only message classes and the table of error codes come from kafka-python, nothing that opens
a socket or writes a log (except in `group_member`, which only the console uses). A message needed elsewhere
is added here, so that one file shows how much we depend on. Why not import it where it is used: on Python
3.11 and 3.12 its import raises deprecation warnings, which would fail every program that turns warnings into
errors.

>>> error_name(6)
'NOT_LEADER_OR_FOLLOWER'
"""

from __future__ import annotations

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import kafka_errors
    from kafka.protocol.admin import (
        CreatePartitionsRequest,
        CreateTopicsRequest,
        DeleteTopicsRequest,
        DescribeConfigsRequest,
        DescribeGroupsRequest,
        DescribeProducersRequest,
        DescribeTransactionsRequest,
        ListGroupsRequest,
        ListTransactionsRequest,
    )
    from kafka.protocol.consumer import (
        FetchRequest,
        FetchResponse,
        ListOffsetsRequest,
        OffsetCommitRequest,
        OffsetFetchRequest,
        OffsetForLeaderEpochRequest,
    )
    from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
    from kafka.protocol.producer import (
        AddPartitionsToTxnRequest,
        EndTxnRequest,
        InitProducerIdRequest,
        ProduceRequest,
    )
    from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

__all__ = [
    "AddPartitionsToTxnRequest",
    "ApiVersionsRequest",
    "CreatePartitionsRequest",
    "CreateTopicsRequest",
    "DeleteTopicsRequest",
    "DescribeConfigsRequest",
    "DescribeGroupsRequest",
    "DescribeProducersRequest",
    "DescribeTransactionsRequest",
    "EndTxnRequest",
    "FetchRequest",
    "FetchResponse",
    "FindCoordinatorRequest",
    "InitProducerIdRequest",
    "ListGroupsRequest",
    "ListOffsetsRequest",
    "ListTransactionsRequest",
    "MetadataRequest",
    "OffsetCommitRequest",
    "OffsetFetchRequest",
    "OffsetForLeaderEpochRequest",
    "ProduceRequest",
    "SaslAuthenticateRequest",
    "SaslHandshakeRequest",
    "error_name",
]

# Four names that kafka-python spells in its own way or an older one.
_RENAMED = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
}


def error_name(code: int) -> str:
    """Return Kafka's own name for an error code; an unknown one keeps its number."""
    known = kafka_errors.get(code)
    if code in _RENAMED:
        return _RENAMED[code]
    return str(known.message) if known is not None else f"ERROR_CODE_{code}"
