"""Consumer groups: what they have committed, who their members are, and how far behind they are."""
