"""How the tests look at the rows of a read."""

from __future__ import annotations

from pyspark.sql import DataFrame


def values(frame: DataFrame) -> list[str | None]:
    """Return the values as text, in the order of partition and offset."""
    rows = frame.select("partition", "offset", "value").collect()
    rows.sort(key=lambda row: (row.partition, row.offset))
    return [None if row.value is None else row.value.decode() for row in rows]


def offsets(frame: DataFrame) -> list[tuple[int, int]]:
    """Return (partition, offset) of every row, sorted; a row that came twice is there twice."""
    rows = frame.select("partition", "offset").collect()
    return sorted((row.partition, row.offset) for row in rows)


def span(partition: int, start: int, until: int) -> list[tuple[int, int]]:
    """Return what `offsets` returns for a range that was read whole."""
    return [(partition, offset) for offset in range(start, until)]
