"""Java client settings that are not translated: those without effect here and those refused.

Rule: "without effect" is only for settings whose absence changes neither rows nor safety (group membership,
metrics, backoff shapes, and on a read all that only a producer has). What would change rows or weaken
security is refused with what to use instead, and so is every setting that makes a Java client load code,
files or addresses of an attacker's choosing.

>>> explain_refusal("auto.offset.reset").condition
'OPTION_REFUSED'
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.core.errors import OptionError

_OWN_READING = "Offsets are planned by Penstock, so that nothing is skipped or read twice."
_NO_CODE = "No class, file or address named in an option is loaded."

REFUSED: Mapping[str, str] = {
    "auto.offset.reset": f"Use `startingOffsets` instead. {_OWN_READING}",
    "enable.auto.commit": f"Leave it out. {_OWN_READING}",
    "auto.commit.enable": f"Leave it out. {_OWN_READING}",
    "key.deserializer": "Keys arrive as bytes; convert the `key` column in the DataFrame.",
    "value.deserializer": "Values arrive as bytes; convert the `value` column in the DataFrame.",
    "key.serializer": "Keys are written as bytes; convert the `key` column in the DataFrame.",
    "value.serializer": "Values are written as bytes; convert the `value` column in the DataFrame.",
    "interceptor.classes": f"{_NO_CODE} Transform rows in the DataFrame.",
    "metadata.broker.list": "Use `kafka.bootstrap.servers` instead.",
    "bootstrap.controllers": "Use `kafka.bootstrap.servers` instead.",
    "zookeeper.connect": "Use `kafka.bootstrap.servers` instead; Kafka no longer needs ZooKeeper.",
    "sasl.client.callback.handler.class": f"{_NO_CODE} Use `kafka.sasl.jaas.config`.",
    "sasl.login.callback.handler.class": f"{_NO_CODE} Use `kafka.sasl.jaas.config`.",
    "sasl.login.class": f"{_NO_CODE} Use `kafka.sasl.jaas.config`.",
    "sasl.oauthbearer.token.endpoint.url": f"{_NO_CODE} Use PLAIN or SCRAM.",
    "sasl.oauthbearer.jwks.endpoint.url": f"{_NO_CODE} Use PLAIN or SCRAM.",
    "sasl.oauthbearer.assertion.file": f"{_NO_CODE} Use PLAIN or SCRAM.",
    "sasl.oauthbearer.assertion.private.key.file": f"{_NO_CODE} Use PLAIN or SCRAM.",
    "sasl.oauthbearer.assertion.template.file": f"{_NO_CODE} Use PLAIN or SCRAM.",
    "sasl.oauthbearer.jwt.retriever.class": f"{_NO_CODE} Use PLAIN or SCRAM.",
    "sasl.oauthbearer.jwt.validator.class": f"{_NO_CODE} Use PLAIN or SCRAM.",
    "security.providers": _NO_CODE,
    "ssl.engine.factory.class": f"{_NO_CODE} Use `kafka.ssl.truststore.*` with PEM.",
    "ssl.provider": f"{_NO_CODE} TLS is Python's own.",
    "ssl.cipher.suites": "Leave it out: Python's choice of modern ciphers holds and cannot be changed here.",
    "config.providers": f"{_NO_CODE} Write `${{env:NAME}}` or `${{file:/path}}` as the value itself.",
}

WITHOUT_EFFECT = frozenset(
    (
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.include.jmx.reporter",
        "client.dns.lookup",
        "enable.metrics.push",
        "exclude.internal.topics",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "max.poll.interval.ms",
        "max.poll.records",
        "metadata.recovery.rebootstrap.trigger.ms",
        "metadata.recovery.strategy",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "partition.assignment.strategy",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retries",
        "retry.backoff.max.ms",
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        # OAUTHBEARER itself is refused, so its settings have no effect.
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.header.urlencode",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "socket.connection.setup.timeout.max.ms",
        "ssl.keymanager.algorithm",
        "ssl.keystore.password",
        "ssl.protocol",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.password",
    )
)

#: Settings that only Java's producer has (those shared with the consumer are elsewhere).
PRODUCER_ONLY = frozenset(
    (
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.idle.ms",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.class",
        "partitioner.ignore.keys",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "transactional.id",
    )
)


def explain_refusal(name: str) -> OptionError:
    """Return the error for a setting on the refused list."""
    return OptionError(
        "OPTION_REFUSED",
        f"Option `kafka.{name}` is not supported.",
        hint=REFUSED[name],
        facts={"option": f"kafka.{name}"},
    )
