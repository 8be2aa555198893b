"""Processes, folders and ports that end with their owner."""
