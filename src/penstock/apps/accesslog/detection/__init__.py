"""Which rules a log line hits: rules as data, texts decoded, one automaton over all of them."""
