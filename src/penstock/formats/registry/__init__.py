"""Schema registries: asking them, and the frame around values that name a schema."""
