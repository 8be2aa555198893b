"""Finds the broker to ask, explains its refusals, and describes the topics of a cluster."""
