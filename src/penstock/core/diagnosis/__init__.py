"""Why a stream does not move: facts in, one answer out."""
