"""What parsing options needs from outside: the core reads no files or variables and makes no random values.

parse_batch_options(options, **see_outside())
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any


def see_outside() -> dict[str, Any]:
    """Return these arguments: a unique text, a function that reads a file, and the environment variables."""
    return {"unique": uuid.uuid4().hex, "read_file": _read_text, "environ": os.environ}


def _read_text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8")
