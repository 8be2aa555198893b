"""Decodes Avro values to typed columns."""
