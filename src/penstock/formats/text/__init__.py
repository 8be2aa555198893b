"""Values that are UTF-8 text."""
