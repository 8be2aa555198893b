"""The pipeline on Spark: Kafka in, two stages, SQL out, decisions with their offsets in one transaction."""
