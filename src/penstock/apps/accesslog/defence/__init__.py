"""Who attacks: lines folded per client over time, in the order of the log, into scores and bans."""
