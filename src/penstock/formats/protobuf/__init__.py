"""Decodes Protobuf messages to typed columns."""
