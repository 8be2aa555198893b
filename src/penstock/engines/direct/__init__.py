"""Direct streams: a loop on the driver that decides the offset ranges of each batch, and keeps the offsets
where you say."""
