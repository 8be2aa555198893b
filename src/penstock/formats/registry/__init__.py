"""Schema registries: asking for schemas, and the frame of values that name one."""
