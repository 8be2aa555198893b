"""Real servers on this computer: Kafka, PostgreSQL, MariaDB, and Spark's standalone master and workers.

>>> from penstock.cluster import LocalKafka
"""

from penstock.cluster.kafka import LocalKafka
from penstock.cluster.mariadb import LocalMariaDB
from penstock.cluster.postgres import LocalPostgres

__all__ = ["LocalKafka", "LocalMariaDB", "LocalPostgres"]
