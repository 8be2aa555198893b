"""Reads the files that options of typed columns name: schemas and certificates.

Rule: a file is read where the query starts, and never on a worker.
"""

from __future__ import annotations

from pathlib import Path

from penstock.core.errors import OptionError
from penstock.core.options.secret_references import describe_os_error


def read_option_file(key: str, path: str) -> bytes:
    """Return the bytes of the file that the option `key` names."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OptionError(
            "FILE_UNREADABLE",
            f"Option `{key}` names the file {path}, which cannot be read: {describe_os_error(error)}.",
            hint="Check the path and its permissions on the machine where the query is started.",
            facts={"option": key, "path": path},
        ) from error
