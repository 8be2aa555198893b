"""Finds Java and Spark's jars on this computer, in the places where Spark looks, and checks Java's version.

Rule: `JAVA_HOME` wins over `PATH`, because Spark starts its JVM that way. If `PATH` came first, a broker
could run on another Java than the session beside it. Java is a prerequisite and is never fetched.

>>> read_major_version('openjdk version "17.0.15" 2025-04-15')
17
>>> read_major_version('java version "1.8.0_402"')
8
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from penstock.core.errors import ClusterError

OLDEST_JAVA = 17
ASK_VERSION_TIMEOUT_S = 60.0


def find_java() -> Path:
    """Return the path of `java`, checked to be at least version 17."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not os.access(found, os.X_OK):
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is no `java` on PATH"
        raise ClusterError(
            "JAVA_NOT_FOUND",
            f"Java {OLDEST_JAVA} or newer is needed, but {where}.",
            hint=f"Install a JDK or JRE {OLDEST_JAVA}+ and put it on PATH or set JAVA_HOME.",
        )
    version = _ask_version(found)
    if version < OLDEST_JAVA:
        raise ClusterError(
            "JAVA_TOO_OLD",
            f"Java {OLDEST_JAVA} or newer is needed, but {found} is Java {version}.",
            hint="Put a newer Java first on PATH or point JAVA_HOME at it.",
            facts={"java": found, "version": version},
        )
    return Path(found)


def find_spark_home() -> Path:
    """Return the folder whose `jars` belong to the PySpark in use: its own, or SPARK_HOME for a zip."""
    import pyspark

    package = Path(pyspark.__file__).parent
    home = os.environ.get("SPARK_HOME")
    for place in (package, *([Path(home)] if home else [])):
        if (place / "jars").is_dir():
            return place
    raise ClusterError(
        "SPARK_JARS_NOT_FOUND",
        f"Spark's jars are needed, but PySpark at {package} has no folder `jars` beside it, and "
        + (f"neither has SPARK_HOME, {home}." if home else "SPARK_HOME is not set."),
        hint="Set SPARK_HOME to the folder of the Spark that this PySpark belongs to, or install pyspark.",
    )


def read_major_version(text: str) -> int | None:
    """Return the major version in the output of `java -version`; None if there is none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    major = int(match[1])
    return int(match[2]) if major == 1 and match[2] else major  # "1.8" is Java 8


def _ask_version(java: str) -> int:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=ASK_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ClusterError(
            "JAVA_NOT_FOUND", f"{java} cannot be run: {error}.", hint=f"Install Java {OLDEST_JAVA}+."
        ) from error
    said = answer.stderr + answer.stdout
    version = read_major_version(said)
    if version is None:
        raise ClusterError(
            "JAVA_NOT_FOUND",
            f"`{java} -version` shows no version (exit {answer.returncode}): {said.strip()[:300]!r}.",
            hint=f"Install Java {OLDEST_JAVA}+ and put it on PATH or set JAVA_HOME.",
        )
    return version
