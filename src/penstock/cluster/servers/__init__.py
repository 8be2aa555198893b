"""Local PostgreSQL, MariaDB and ZooKeeper servers."""
