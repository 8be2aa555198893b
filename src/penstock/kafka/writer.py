"""The plain producer, for users: Arrow tables into a topic, each record once, every answer checked.

>>> from penstock.kafka.writer import Writer
"""

from penstock.kafka.writing.plain_producer import Writer

__all__ = ["Writer"]
