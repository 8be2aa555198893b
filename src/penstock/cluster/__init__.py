"""Real servers on this computer: Kafka, PostgreSQL, MariaDB and ZooKeeper.

>>> from penstock.cluster import LocalKafka
"""

from penstock.cluster.kafka.local_kafka import LocalKafka
from penstock.cluster.servers.mariadb import LocalMariaDB
from penstock.cluster.servers.postgres import LocalPostgres
from penstock.cluster.servers.zookeeper import LocalZooKeeper

__all__ = ["LocalKafka", "LocalMariaDB", "LocalPostgres", "LocalZooKeeper"]
