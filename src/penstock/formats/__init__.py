"""Decodes the bytes of values to typed columns: each row is good or bad, and none is lost."""
