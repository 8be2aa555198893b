"""What every engine needs to read a log: looking at it, deciding with `core`, reading it in workers."""
