"""Reading records and looking at the log: a work order in, Arrow batches out."""
