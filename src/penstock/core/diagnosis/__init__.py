"""Diagnoses why a stream does not move: from facts to one answer."""
