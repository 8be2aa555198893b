"""Protobuf messages to typed columns."""
