"""How `penstock offsets` plans, shows and makes the moves of a stream."""
