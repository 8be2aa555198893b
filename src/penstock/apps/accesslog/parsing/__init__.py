"""Log lines into columns: log formats, the access-log kernel, JSON lines, and who the client of a line is."""
