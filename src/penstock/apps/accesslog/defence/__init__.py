"""The defence: it folds the lines of each client over time, in the order of the log, into scores and bans."""
