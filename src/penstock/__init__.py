"""Kafka into Spark, and results out, from Python."""

__version__ = "0.1.0"
