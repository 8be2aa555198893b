"""Writing records: Arrow tables go in, acknowledged record batches come out, plain or in a transaction."""
