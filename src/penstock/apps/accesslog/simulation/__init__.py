"""Simulated traffic of several web servers with labelled attacks in it."""
