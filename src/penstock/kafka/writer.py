"""The plain producer, for users: it writes Arrow tables to a topic, each record once, every answer checked.

>>> from penstock.kafka.writer import Writer
"""

from penstock.kafka.writing.plain_producer import Writer

__all__ = ["Writer"]
