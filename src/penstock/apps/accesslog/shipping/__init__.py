"""Log files into Kafka, each line once."""
