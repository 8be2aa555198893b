"""Makes a launcher with which each Python process that Spark starts is ready half a second earlier.

Spark puts its own PySpark before everything else on `PYTHONPATH`, in a zip without compiled files: importing
`pyspark.worker` takes 0.75 s from there and 0.16 s from the installed package. Spark starts four such
processes before the first row. The launcher drops Spark's archives if the interpreter has the same PySpark.

Rule: the launcher changes something only if the versions are the same. The zip's version is that of the only
`spark-core` jar beside it. The process id, arguments, descriptors and all other variables stay as they are.
It is a script for bash, which Spark's own scripts need anyway: Debian's `sh` loses variables with a dot in
their names, and starting Python from Python takes 6 ms instead of 1.5 ms.

    os.environ["PYSPARK_PYTHON"] = make_launcher()
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import site
import sys
import tempfile
from pathlib import Path

from penstock.cluster.downloads.jars import cache_folder

#: What follows the head. Plain variable names appear only inside the function, where they are local. Outside
#: they would change the environment variables of the same name.
_SCRIPT = r"""
_penstock_shorten() {
    local rest=$PYTHONPATH: entry version jar home=
    local info=("$_penstock_site"/pyspark-*.dist-info) jars
    version=${info[0]##*/pyspark-} version=${version%.dist-info}
    [[ ${#info[@]} == 1 && -f $_penstock_site/pyspark/__init__.py ]] || return
    while [[ $rest ]]; do
        entry=${rest%%:*} rest=${rest#*:}
        case $entry in
        */python/lib/pyspark.zip)
            home=${entry%/python/lib/pyspark.zip}
            jars=("$home"/jars/spark-core_*.jar)
            jar=${jars[0]##*/spark-core_}
            [[ ${#jars[@]} == 1 && ${jar#*-} == "$version.jar" ]] || return ;;
        "$home"/python/lib/py4j-*-src.zip)
            entry=${entry##*/py4j-}
            [[ -d $_penstock_site/py4j-${entry%-src.zip}.dist-info ]] || return ;;
        "$home"/jars/spark-core_*.jar) ;; # put there by Spark too; no Python is inside
        *)
            _penstock_kept+=:$entry
            # Another PySpark, which would come first now?
            [[ ! -e ${entry:-.}/pyspark/__init__.py && ! -e ${entry:-.}/py4j/__init__.py ]] || return
            if [[ -f $entry ]]; then
                grep -qaF -e pyspark/__init__.py -e py4j/__init__.py -- "$entry"
                [[ $? == 1 ]] || return
            fi ;;
        esac
    done
    [[ $home ]]
}

_penstock_kept=
if _penstock_shorten; then PYTHONPATH=${_penstock_kept#:}; fi
exec "$_penstock_python" "$@"
"""


def make_launcher() -> str:
    """Return the path of the launcher for this interpreter, and make it at the first call.

    Return the interpreter's own path if there can be no launcher: without PySpark in its site-packages,
    without bash, or if the cache folder cannot hold programs.
    """
    bash, packages = shutil.which("bash"), _find_packages()
    if packages is None or bash is None or " " in bash:
        return sys.executable
    head = (
        f"#!{bash} -p\n"  # -p: without bash's start-up files
        "# Made by `penstock python`; another interpreter gets another file.\n"
        f"_penstock_python={shlex.quote(sys.executable)}\n"
        f"_penstock_site={shlex.quote(packages)}\n"
    )
    try:
        return _keep(os.fsencode(head + _SCRIPT))
    except (OSError, RuntimeError):  # no room for it, or no home folder
        return sys.executable


def _find_packages() -> str | None:
    """Return the folder from which the interpreter imports PySpark when no `PYTHONPATH` is set."""
    installed = {*site.getsitepackages(), site.getusersitepackages()}
    return next((each for each in sys.path if each in installed and Path(each, "pyspark").is_dir()), None)


def _keep(script: bytes) -> str:
    """Return the path of an executable file with this text. Other processes see all of it or nothing."""
    name = "python{}.{}-{}".format(*sys.version_info[:2], hashlib.sha256(script).hexdigest()[:12])
    path = cache_folder() / "launchers" / name
    if not path.is_file() or path.read_bytes() != script:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            made = Path(folder, name)
            made.write_bytes(script)
            made.chmod(0o755)
            made.replace(path)
    return str(path) if os.access(path, os.X_OK) else sys.executable
