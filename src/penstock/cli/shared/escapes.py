r"""Escapes in arguments on the command line, where a tab cannot be typed.

Rule: the escapes are `\t`, `\n`, `\r`, `\0`, `\\` and `\xHH`, a byte. Anything else after a backslash is an
error, because a wrong separator is found in no line, or in the wrong place in every line. Put quotes around
the argument, so that the shell leaves the backslash alone.

>>> read_escapes("--key-separator", r"\t")
b'\t'
"""

from __future__ import annotations

import os
import re

from penstock.core.errors import OptionError

_ESCAPE = re.compile(rb"\\(?:([tnr0\\])|x([0-9a-fA-F]{2})|)")
_MEANT = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def read_escapes(option: str, text: str) -> bytes:
    """Return the bytes that are meant; there is at least one."""

    def replace(found: re.Match[bytes]) -> bytes:
        if found[1] is not None:
            return _MEANT[found[1]]
        if found[2] is not None:
            return bytes.fromhex(found[2].decode())
        raise OptionError(
            "ESCAPE_UNKNOWN",
            f"{option} is {text}, with a backslash that begins no escape.",
            hint=r"There are \t, \n, \r, \0, \xHH for a byte, and \\ for the backslash itself.",
            facts={"option": option},
        )

    if not text:
        raise OptionError("SEPARATOR_EMPTY", f"{option} is empty.", hint="Give at least one character.")
    return _ESCAPE.sub(replace, os.fsencode(text))


def read_escaped_text(option: str, text: str) -> str:
    """Return the text that is meant; refuse bytes that are not text."""
    try:
        return read_escapes(option, text).decode("utf-8") if text else ""
    except UnicodeDecodeError:
        raise OptionError(
            "SEPARATOR_INVALID",
            f"{option} is {text}, which is not text in UTF-8.",
            hint="What is shown is text; give characters.",
            facts={"option": option},
        ) from None
