"""The SQL sink: its tables, how rows are staged and published."""
