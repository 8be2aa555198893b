"""Turns lines into events of the defence, with subjects and networks as numbers and the log's own time."""
