"""Live load monitoring and attack defence on access logs: Kafka in, Spark between, SQL and lists out."""
