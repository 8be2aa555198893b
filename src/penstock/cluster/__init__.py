"""Real servers on this computer: Kafka, PostgreSQL, MariaDB, ZooKeeper, Spark's standalone cluster.

>>> from penstock.cluster import LocalKafka
"""

from penstock.cluster.kafka import LocalKafka
from penstock.cluster.mariadb import LocalMariaDB
from penstock.cluster.postgres import LocalPostgres
from penstock.cluster.zookeeper import LocalZooKeeper

__all__ = ["LocalKafka", "LocalMariaDB", "LocalPostgres", "LocalZooKeeper"]
