"""The settings of a Kafka client, after translation from Java's names.

Rule: a secret is a `Secret`; its text leaves it only by `.reveal()` at the socket, so repr, logs and error
messages cannot show it. Only pickles carry it, because a task must log in.

>>> Secret("hunter2")
Secret(***)
"""

from __future__ import annotations

from dataclasses import dataclass, field

IsolationLevel = str  # "read_uncommitted" (Spark's default) or "read_committed"


class Secret:
    """Text that repr and str hide; only `reveal` returns it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    def __reduce__(self) -> tuple[type[Secret], tuple[str]]:
        return (Secret, (self._text,))


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """PEM material as text; files are read where the option is parsed."""

    ca_pem: str | None = field(default=None, repr=False)
    certificate_pem: str | None = field(default=None, repr=False)  # files often hold the key, too
    key_pem: Secret | None = None
    key_password: Secret | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """A SASL login. PLAIN and SCRAM carry a name and a password."""

    mechanism: str
    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """One client's settings; hashable, so a pool can use them as a key (cluster and credentials together)."""

    bootstrap_servers: tuple[tuple[str, int], ...]
    client_id: str = "penstock"
    security_protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    client_rack: str = ""
    group_id: str | None = None
    isolation_level: IsolationLevel = "read_uncommitted"
    check_crcs: bool = True
    # Deadlines and pauses, with Java's names and defaults.
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    socket_connection_setup_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    connections_max_idle_ms: int = 540_000
    metadata_max_age_ms: int = 300_000
    # Sizes. A partition's share is larger than Java's 1 MiB because each answer costs a round trip; Arrow
    # batches are cut to a size of their own, whatever arrives.
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 8_388_608
    receive_buffer_bytes: int = 0  # the system's own sizing; on loopback it is as fast as 1 MiB
    send_buffer_bytes: int = 131_072
