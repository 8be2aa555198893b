"""Messages as `produce` reads and `consume` shows them."""
