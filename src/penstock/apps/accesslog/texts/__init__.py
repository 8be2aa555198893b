"""Equal texts of a chunk of lines, numbered once for all who look at them."""
