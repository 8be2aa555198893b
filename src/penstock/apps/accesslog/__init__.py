"""Live load monitoring and attack defence for access logs: from Kafka through Spark to SQL and blocklists."""
