"""Client settings for reaching Kafka, as types, and Java's names for them."""
