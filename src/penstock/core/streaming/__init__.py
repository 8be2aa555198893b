"""A stream, decided: where it starts, what happened to its log, how far the next batch goes."""
