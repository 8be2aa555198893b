"""Options: one table per surface, the values they take, and what they mean together."""
