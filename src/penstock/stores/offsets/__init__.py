"""Places that keep a stream's offsets, all behind `core.offsets.offset_store_contract.OffsetStore`."""
