"""Benchmarks: each prints machine, versions, both sides, raw samples, median, spread and ratio."""
