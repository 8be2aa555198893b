"""Connections to SQL databases: dialects, transactions, waiting for a server that is away."""
