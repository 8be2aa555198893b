"""Losses, which are offsets that will never be read, and the error for each kind."""
