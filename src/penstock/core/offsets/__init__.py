"""Positions of streams and their text, what every offset store promises, and moving a stream by hand."""
