"""What was seen and done, as one HTML file with charts."""
