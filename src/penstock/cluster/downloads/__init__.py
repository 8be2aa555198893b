"""The parts of local servers: jars and archives, fetched once by their coordinates, and Java."""
