"""Decodes JSON values to typed columns."""
