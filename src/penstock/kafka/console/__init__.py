"""The parts of Kafka that only the terminal needs: joining a group, tailing topics, describing them."""
