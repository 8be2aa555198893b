"""Local Kafka brokers: their processes, settings, security, and clusters that stay."""
