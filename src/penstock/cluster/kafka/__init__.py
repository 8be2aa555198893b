"""Local Kafka brokers: their processes, settings and security, and clusters that keep running."""
