"""Delivery of decisions to the programs that enforce them: blocklists, a read-only API, a Kafka topic."""
