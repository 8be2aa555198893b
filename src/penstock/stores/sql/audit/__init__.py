"""What an audit reads from a database, and from Kafka a second time."""
