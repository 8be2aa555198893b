"""The ledger of the SQL sink: who may write, how far results go, and what a rewind does to rows."""
