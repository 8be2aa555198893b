"""The defence: it folds the lines of each client, in the order of the log, into scores and bans."""
