"""Schema registries: asking for schemas, and the frame in which a value names its schema."""
