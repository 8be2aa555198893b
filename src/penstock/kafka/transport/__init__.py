"""A connection to a broker: socket, TLS, login, pool, deadlines, and Kafka's messages."""
