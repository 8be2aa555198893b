"""Value bytes to typed columns: good rows and bad rows, never one lost between them."""
