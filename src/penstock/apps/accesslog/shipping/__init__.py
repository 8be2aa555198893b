"""Shipping log files into Kafka, each line once."""
