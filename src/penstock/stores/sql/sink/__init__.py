"""The SQL sink: its tables, and how rows are staged and published."""
