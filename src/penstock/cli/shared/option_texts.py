"""The texts of options: references to secrets in them are filled in, and files that they name are read.

Rule: `${env:NAME}` and `${file:PATH}` mean the same in every option of every command.

>>> resolve("--at", "offsets/visits")
'offsets/visits'
"""

from __future__ import annotations

import os
from pathlib import Path

from penstock.core.options.secret_references import resolve_reference


def resolve(option: str, text: str) -> str:
    """Return an option's text with its `${env:NAME}` and `${file:PATH}` filled in."""
    return resolve_reference(option, text, environ=os.environ, read_file=read_file)


def read_file(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
