"""Values for every option of the batch read: good ones, and ones with something wrong in them.

Rule: each entry of `FAULTS` is one wrong thing. An option set has at most one of them, so that "both
connectors fail with the same kind of error" is unambiguous. A tilde stands for the session's topic prefix,
and a question mark for a unique text, because Spark's pool refuses one group with two settings.

    FINE["minPartitions"][0] == "1"
"""

from __future__ import annotations

from tests.parity.topics import T0

#: Options whose values are independent of others. `option_sets` makes start, end and selection.
FINE: dict[str, tuple[str, ...]] = {
    "minPartitions": ("1", "2", "3", "5", "9", "40"),
    "maxRecordsPerPartition": ("1", "4", "7", "30", "5000000000"),
    "includeHeaders": ("true", "false", "TRUE", "False"),
    "failOnDataLoss": ("true", "false", "FALSE", "True"),
    "kafkaConsumer.pollTimeoutMs": ("4000", "10000"),
    "fetchOffset.numRetries": ("1", "2", "4"),
    "fetchOffset.retryIntervalMs": ("0", "1", "10"),
    "groupIdPrefix": ("reports", "a.b-c"),
    "maxOffsetsPerTrigger": ("10",),
    "minOffsetsPerTrigger": ("5",),
    "maxTriggerDelay": ("1s",),
    "kafka.group.id": ("~group-?",),
    "kafka.isolation.level": ("read_committed", "read_uncommitted"),
    "kafka.max.poll.records": ("1", "3", "500"),
    "kafka.fetch.max.bytes": ("1", "300", " 1048576 "),
    "kafka.max.partition.fetch.bytes": ("1", "200", "1048576"),
    "kafka.fetch.max.wait.ms": ("0", "20"),
    "kafka.client.id": ("parity",),
    "kafka.check.crcs": ("true", "false"),
    "kafka.metadata.max.age.ms": ("1000",),
}

REFUSED: dict[str, tuple[str, ...]] = {
    "kafka.auto.offset.reset": ("earliest", "latest", "none"),
    "kafka.enable.auto.commit": ("true", "false"),
    "kafka.interceptor.classes": ("com.example.Spy",),
    "kafka.key.deserializer": ("org.apache.kafka.common.serialization.StringDeserializer",),
    "kafka.value.deserializer": ("org.apache.kafka.common.serialization.ByteArrayDeserializer",),
}

#: These replace the selection: none, two, three, an empty or malformed one, or topics that do not exist.
SELECTION_FAULTS: tuple[dict[str, str], ...] = (
    {},
    {"subscribe": "~plain", "subscribePattern": "~plain"},
    {"subscribe": "~plain", "assign": '{"~plain":[0]}'},
    {"subscribe": "~plain", "subscribePattern": "~p.*", "assign": '{"~plain":[0]}'},
    {"subscribe": ""},
    {"subscribe": ","},
    {"subscribe": "~missing"},
    {"subscribe": "~plain,~missing"},
    {"subscribe": "~PLAIN"},
    {"subscribePattern": ""},
    {"subscribePattern": "~("},
    {"subscribePattern": "~[a"},
    {"assign": ""},
    {"assign": "~plain"},
    {"assign": "{"},
    {"assign": "[0]"},
    {"assign": '{"~plain":0}'},
    {"assign": '{"~plain":["x"]}'},
    {"assign": '{"~missing":[0]}'},
)

START_FAULTS: tuple[tuple[str, str], ...] = (
    ("startingOffsets", "latest"),
    ("startingOffsets", "LATEST"),
    ("startingOffsets", "first"),
    ("startingOffsets", ""),
    ("startingOffsets", "{"),
    ("startingOffsets", "12"),
    ("startingOffsets", '{"~plain":{"0":-1}}'),
    ("startingOffsets", '{"~plain":{"0":"x"}}'),
    ("startingOffsets", '{"~plain":{"x":1}}'),
    ("startingOffsets", '{"~plain":5}'),
    ("startingTimestamp", "now"),
    ("startingTimestamp", ""),
    ("startingTimestamp", "1.5"),
    ("startingOffsetsByTimestamp", "1700000000000"),
    ("startingOffsetsByTimestamp", ""),
    ("startingOffsetsByTimestamp", '{"~plain":{"0":"soon"}}'),
)
END_FAULTS: tuple[tuple[str, str], ...] = (
    ("endingOffsets", "earliest"),
    ("endingOffsets", "Earliest"),
    ("endingOffsets", "end"),
    ("endingOffsets", ""),
    ("endingOffsets", '{"~plain":{"0":-2}}'),
    ("endingOffsets", '{"~plain":{"0":1}'),
    ("endingTimestamp", "later"),
    ("endingTimestamp", ""),
    ("endingOffsetsByTimestamp", "{"),
    ("endingOffsetsByTimestamp", "latest"),
)
VALUE_FAULTS: tuple[tuple[str, str], ...] = (
    ("startingOffsetsByTimestampStrategy", "earliest"),
    ("startingOffsetsByTimestampStrategy", ""),
    ("startingOffsetsByTimestampStrategy", " latest "),
    ("minPartitions", "0"),
    ("minPartitions", "-1"),
    ("minPartitions", "a"),
    ("minPartitions", "1.0"),
    ("minPartitions", ""),
    ("maxRecordsPerPartition", "0"),
    ("maxRecordsPerPartition", "-5"),
    ("maxRecordsPerPartition", "many"),
    ("includeHeaders", "yes"),
    ("includeHeaders", ""),
    ("failOnDataLoss", "no"),
    ("failOnDataLoss", ""),
    ("kafkaConsumer.pollTimeoutMs", "soon"),
    ("kafkaConsumer.pollTimeoutMs", "1.5"),
    ("fetchOffset.numRetries", "three"),
    ("fetchOffset.retryIntervalMs", "1s"),
    ("kafka.isolation.level", "read_everything"),
    ("kafka.isolation.level", ""),
    ("kafka.fetch.max.bytes", "-1"),
    ("kafka.check.crcs", "sometimes"),
    ("kafka.bootstrap.servers", ""),
    ("kafka.bootstrap.servers", "no-port"),
    ("kafka.bootstrap.servers", "host:port"),
    ("kafka.security.protocol", "TLS"),
)

#: For `~plain`, one partition of 40 records: starts behind ends, or partitions that do not match.
ORDER_FAULTS: tuple[dict[str, str], ...] = (
    {"startingOffsets": '{"~plain":{"0":9}}', "endingOffsets": '{"~plain":{"0":8}}'},
    {"startingOffsets": '{"~plain":{"0":41}}'},
    {"startingOffsets": '{"~plain":{"0":30}}', "endingTimestamp": str(T0)},
    {"startingTimestamp": str(T0 + 9000), "endingOffsets": '{"~plain":{"0":3}}'},
    {"startingOffsets": '{"~plain":{"0":1}}', "endingOffsets": '{"~skew":{"0":9}}'},
    {"startingOffsets": '{"~plain":{"0":1,"1":1}}'},
    {"startingOffsets": '{"~skew":{"0":1}}'},
    {"endingOffsets": '{"~plain":{"0":9,"1":9}}'},
    {"startingOffsetsByTimestamp": f'{{"~plain":{{"1":{T0}}}}}'},
    {"endingOffsetsByTimestamp": f'{{"~plain":{{"0":{T0},"7":{T0}}}}}'},
)

#: For `~trimmed`, whose partition 0 begins at 10 of 30: offsets that are gone, or do not exist yet.
LOSSES: tuple[dict[str, str], ...] = (
    {"startingOffsets": '{"~trimmed":{"0":3,"1":3}}'},
    {"startingOffsets": '{"~trimmed":{"0":3,"1":3}}', "endingOffsets": '{"~trimmed":{"0":7,"1":7}}'},
    {"startingOffsets": '{"~trimmed":{"0":10,"1":0}}'},
    {"endingOffsets": '{"~trimmed":{"0":45,"1":30}}'},
    {"startingOffsets": '{"~trimmed":{"0":-2,"1":29}}', "endingOffsets": '{"~trimmed":{"0":11,"1":-1}}'},
)
