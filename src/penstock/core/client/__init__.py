"""How to reach Kafka: client settings as types, and Java's names for them."""
