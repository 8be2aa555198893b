"""Stream positions and their text form, the contract of offset stores, and moving a stream by hand."""
