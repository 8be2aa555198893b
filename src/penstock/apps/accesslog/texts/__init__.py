"""Equal texts of a chunk of lines, numbered once for all code that needs them."""
