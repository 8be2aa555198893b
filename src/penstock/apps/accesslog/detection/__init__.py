"""Finds the rules that a log line hits: rules are data, texts are decoded, one automaton checks them all."""
