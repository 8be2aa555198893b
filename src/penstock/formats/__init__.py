"""Decodes value bytes to typed columns: each row is good or bad, and none is lost."""
