"""Plans a batch read: its partitions, their bounds, and the tasks."""
