"""Measures how good the defence is: replays log files without Spark, and compares decisions with labels."""
