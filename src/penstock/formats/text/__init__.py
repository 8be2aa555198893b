"""Decodes values that are UTF-8 text."""
