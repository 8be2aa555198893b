"""Messages as `produce` reads them and `consume` shows them."""
