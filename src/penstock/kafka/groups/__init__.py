"""Consumer groups: what they have committed, who is in them, and how far they are behind."""
