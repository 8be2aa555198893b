"""Real servers on this computer: Kafka, and Spark's standalone master and workers.

>>> from penstock.cluster import LocalKafka
"""

from penstock.cluster.kafka import LocalKafka

__all__ = ["LocalKafka"]
