"""Direct streams: a loop on the driver that decides the offset ranges of each batch, and stores the offsets
where you choose."""
