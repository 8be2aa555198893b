"""What local servers are made of: jars and archives, fetched once by their coordinates, and Java."""
