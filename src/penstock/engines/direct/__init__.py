"""Direct streams: a driver loop that decides the offset ranges of each batch and keeps them where you say."""
