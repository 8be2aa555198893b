"""Direct streams: a loop on the driver that decides each batch's offset ranges and stores the offsets
where you choose."""
