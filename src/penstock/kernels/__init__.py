"""Compiles, caches and warms kernels, and holds the parts they share: columns, text, numbers."""
