"""The report: load, alerts and decisions as one HTML file with charts."""
