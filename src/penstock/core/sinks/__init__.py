"""Makes results and offsets durable together: the commit protocol as steps, and the rules of its ledger."""
