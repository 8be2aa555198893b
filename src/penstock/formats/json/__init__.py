"""JSON values to typed columns."""
