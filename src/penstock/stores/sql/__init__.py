"""SQL databases: connections, sessions, and what is kept in their tables."""
