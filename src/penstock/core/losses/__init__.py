"""Offsets that will never be read: what a loss is, and the error that names each kind."""
