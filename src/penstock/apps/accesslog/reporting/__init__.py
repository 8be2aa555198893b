"""The report: what was seen and done, as one HTML file with charts."""
