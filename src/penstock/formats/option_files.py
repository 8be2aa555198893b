"""Reads the files that options of typed columns name: schemas and certificates.

Rule: a file is read where the query starts, and never on a worker.
"""

from __future__ import annotations

from pathlib import Path

from penstock.core.options.secret_references import unreadable_file


def read_option_bytes(key: str, path: str) -> bytes:
    """Return the bytes of the file that the option `key` names."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable_file(key, path, error) from error
