"""Places that keep a stream's offsets, all behind `core.offset_stores.OffsetStore`."""
