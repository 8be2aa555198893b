"""Avro values to typed columns."""
