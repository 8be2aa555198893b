"""Audits: what the books of a sink prove about its rows, and what they do not."""
