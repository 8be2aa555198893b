"""What every engine needs to read a log: look at it, decide with `core`, and read it in workers."""
