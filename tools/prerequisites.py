"""Says in one sentence what is missing before `.venv` can be made: Python 3.11+ and Java 17+.

Rule: this file runs under the Python that it complains about, so it uses only syntax that any Python 3 reads.

Example: `python3 tools/prerequisites.py` prints nothing and ends with 0 when all is well.
"""

import os
import re
import subprocess
import sys


def find_java_version():
    """Return the major version of the Java that Spark would start, or None without one."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else "java"
    try:
        answer = subprocess.run(
            [java, "-version"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, check=False
        )
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr.decode("utf-8", "replace"))
    return int(found.group(1)) if found else None


def name_what_is_missing():
    """Return the sentence for the user, or None if nothing is missing."""
    if sys.version_info < (3, 11):
        return (
            "Penstock needs Python 3.11 or newer and this is %d.%d: run `make setup PYTHON=python3.11`."
            % sys.version_info[:2]
        )
    java = find_java_version()
    if java is None:
        return "Penstock needs Java 17 or newer and found none: install one and set JAVA_HOME or PATH to it."
    if java < 17:
        return "Penstock needs Java 17 or newer and found %d: set JAVA_HOME or PATH to a newer one." % java
    return None


if __name__ == "__main__":
    sys.exit(name_what_is_missing())
