"""Local PostgreSQL, MariaDB, ZooKeeper and Spark's standalone cluster."""
