"""Reads what an audit compares: the database, and Kafka a second time."""
