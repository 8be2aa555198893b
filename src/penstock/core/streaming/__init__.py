"""Plans a stream: where it starts, what happened to its log, and how far the next batch goes."""
