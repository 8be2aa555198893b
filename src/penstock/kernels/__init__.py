"""Compiling, caching and warming kernels, and their shared parts: columns, text, numbers."""
