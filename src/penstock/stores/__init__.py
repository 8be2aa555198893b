"""Places that keep data after the process has ended: offsets, losses and results."""
