"""Parsing log lines into columns: log formats, the access-log kernel, JSON lines, and each line's client."""
