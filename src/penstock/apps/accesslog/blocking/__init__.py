"""Decisions on their way to those who enforce them: blocklists, a read API, a topic."""
