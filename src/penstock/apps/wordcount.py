"""A word count over a stream of lines, the same for every source whose rows have a `value`.

Only the name of the format and its options differ between Kafka and a queue of your own:

    count_words(spark.readStream.format("penstock").options(**options).load())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TOPIC = "quickstart-events"
LINES = ("hello owen", "hello lemon", "byebye")


def count_words(lines: DataFrame) -> DataFrame:
    """Return one row for each word of the lines in `value`, with its count; single spaces separate words."""
    from pyspark.sql.functions import col, explode, split

    words = lines.select(explode(split(col("value").cast("string"), " ")).alias("value"))
    return words.groupBy("value").count()


def show_counts(counts: DataFrame, checkpoint: str) -> StreamingQuery:
    """Print all counts after each batch. With the same checkpoint, the totals continue where they stopped."""
    writer = counts.writeStream.outputMode("complete").format("console").option("truncate", "false")
    return writer.option("checkpointLocation", checkpoint).start()
