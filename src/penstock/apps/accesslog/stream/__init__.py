"""The pipeline on Spark: from Kafka through two stages to SQL, decisions and offsets in one transaction."""
