"""Reading records and looking at the log: a work order goes in, Arrow batches come out."""
