"""What only the terminal needs of Kafka: joining a group, tailing topics, describing them."""
