"""What every engine needs to read a log: looking at it, deciding with `core`, and reading it in workers."""
