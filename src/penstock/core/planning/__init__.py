"""A batch read, decided: which partitions, from where to where, cut into which tasks."""
