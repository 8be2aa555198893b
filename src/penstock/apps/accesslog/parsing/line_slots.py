"""The slots of a parsed line that kernels fill, and the reasons why a line is bad.

The first nine texts are what a user sees. In the others, a kernel keeps texts that become one of these.
"""

from __future__ import annotations

# Texts: where they begin and how long they are.
CLIENT, PEER, USER, METHOD, TARGET, PROTOCOL, REFERRER, AGENT, VHOST, XFF, REQUEST, QUERY, NOWHERE = range(13)
COUNT_OF_TEXTS = 9
COUNT_OF_SPANS = 13
NO_TEXT, NO_FIELD = -1, -2  # instead of a length: it is `-` or the like; the log has no such field
TEXT_FIELDS = ("client", "peer", "user", "method", "target", "protocol", "referrer", "agent", "vhost")

# Numbers.
TIME, STATUS, SIZE, LATENCY = range(4)
COUNT_OF_NUMBERS = 4

#: Why a line is bad; `bad_reasons` are indexes into it.
BAD_REASONS: tuple[str, ...] = (
    "the value is null",
    "the line is empty",
    "the line does not have the log format",
    "the line ends too early",
    "the time is missing or invalid",
    "the request has no closing quote with a status behind it",
    "there is no client: neither an address nor a host name",
    "the line is not one JSON object",
)
NULL, EMPTY, NOT_THE_FORMAT, CUT_OFF, BAD_TIME, NO_REQUEST, NO_CLIENT, NOT_JSON = range(8)
GOOD = -1
