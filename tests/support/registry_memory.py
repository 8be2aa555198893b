"""Empties this process's memory of registries, so that a test does not get the answers of another one."""

from __future__ import annotations

from penstock.formats.registry import schema_lookups


def forget_schemas() -> None:
    """Drop what this process has learned from registries."""
    schema_lookups._kept = type(schema_lookups._kept)()
