"""Lines as events of the defence: subjects and networks as numbers, and time as the log shows it."""
