"""Benchmarks: each prints the machine, versions, both sides, raw samples, median, spread and ratio."""
