"""Writing records: Arrow tables in, acknowledged record batches out, plain or in a transaction."""
