"""Values kept elsewhere: `${env:NAME}` and `${file:/path}` in place of a secret.

Spark shows a query's options in plans, its event log and its pages before any source sees them. Only the
reference can be seen there; the value is looked up where the options are parsed. Rule: the whole value is one
reference (no templates, so a password with `${` in it stays itself), and a missing variable or file is an
error. `${file:/path:name}` reads one `name=value` line of a file, as Java's clients do.

>>> resolve_reference("kafka.x", "${env:NAME}", environ={"NAME": "value"}, read_file=str)
'value'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from penstock.core.errors import OptionError

_REFERENCE = re.compile(r"\$\{(?P<kind>env|file):(?P<place>[^:}]+)(?::(?P<name>[^}]+))?\}")


def resolve_reference(
    key: str, text: str, *, environ: Mapping[str, str], read_file: Callable[[str], str]
) -> str:
    """Return the text itself, or the value it refers to."""
    found = _REFERENCE.fullmatch(text.strip())
    if not found:
        return text
    if found["kind"] == "env":
        if found["place"] not in environ:
            raise _missing(key, f"the environment variable {found['place']} is not set")
        return environ[found["place"]]
    content = read_option_file(key, found["place"], read_file)
    if not found["name"]:
        return content.rstrip("\r\n")
    for line in content.splitlines():
        name, equals, value = line.partition("=")
        if equals and name.strip() == found["name"]:
            return value.strip()
    raise _missing(key, f"the file {found['place']} has no line `{found['name']}=...`")


def read_option_file(key: str, path: str, read_file: Callable[[str], str]) -> str:
    """Return the text of the file that an option names; an error names the option and the file.

    The byte order mark that some editors put in front of UTF-8 is not part of the text.
    """
    try:
        return read_file(path).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable_file(key, path, error) from error


def unreadable_file(key: str, path: str, error: OSError | UnicodeDecodeError) -> OptionError:
    """Return the error for a file that an option names and that cannot be read."""
    why = "it is not text" if isinstance(error, UnicodeDecodeError) else describe_os_error(error)
    return OptionError(
        "FILE_UNREADABLE",
        f"Option `{key}` names the file {path}, which cannot be read: {why}.",
        hint="Check the path and its permissions on the machine where the query is started.",
        facts={"option": key, "path": path},
    )


def describe_os_error(error: OSError) -> str:
    """Return the system's words for an error, without the name of a class.

    >>> describe_os_error(FileNotFoundError(2, "No such file or directory"))
    'no such file or directory'
    """
    return (error.strerror or str(error) or "no answer").lower()


def _missing(key: str, why: str) -> OptionError:
    return OptionError(
        "REFERENCE_MISSING",
        f"Option `{key}` refers to a value kept elsewhere, but {why}.",
        hint="Set it where the query is started (the driver).",
        facts={"option": key},
    )
