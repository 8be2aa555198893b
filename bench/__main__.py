"""Runs all benchmarks, one after the other: `make bench`. Run one alone with `python -m bench.read`."""

from __future__ import annotations

import subprocess
import sys

BENCHMARKS = ("records", "formats", "wire", "read", "first_query", "stream", "direct", "sql", "accesslog")


def main() -> int:
    for name in BENCHMARKS:
        print(f"\n#### bench.{name}", flush=True)
        code = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
