"""Log files as blocks of lines: opened, unpacked if necessary, read block by block, looked at before use.

Rule: a look takes nothing away; the reader still gets the lines that were looked at. Only gzip is unpacked.
Files that are packed in another way are refused by name, because their bytes would pass for unreadable lines.

    with open_log("access.log.1.gz") as file:
        for lines in read_blocks(file, BLOCK_BYTES): ...
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from penstock.apps.accesslog.first_look.line_samples import cut_sample
from penstock.apps.accesslog.shipping.log_follower import LONGEST_LINE_BYTES
from penstock.core.errors import OptionError
from penstock.kernels.newline_cutting import cut_lines

BLOCK_BYTES = 8 << 20
#: The first bytes of packed files that are not unpacked here. No line of a log begins like that.
_OTHER_PACKINGS = {b"\x28\xb5\x2f\xfd": "zstd", b"BZh91A": "bzip2", b"\xfd7zXZ\x00": "xz"}


def _refuse_other_packing(path: Path | str, begin: bytes) -> None:
    for magic, name in _OTHER_PACKINGS.items():
        if begin.startswith(magic):
            raise OptionError(
                "LOG_UNREADABLE",
                f"The log {path} is packed with {name}, and only gzip is unpacked here.",
                hint=f"Unpack it first: `{name} -dc {path} | penstock accesslog ... -`.",
                facts={"path": str(path)},
            )


@contextmanager
def open_log(path: Path | str) -> Iterator[BinaryIO]:
    """Open a log file, unpacked if it is gzip; `-` is standard input, which stays open."""
    if str(path) == "-":
        yield sys.stdin.buffer
        return
    try:
        with open(path, "rb") as file:
            begin = file.read(6)
            is_packed = begin.startswith(b"\x1f\x8b")
            _refuse_other_packing(path, begin)
            file.seek(0)
            if is_packed:
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield cast("BinaryIO", unpacked)
            else:
                yield file
    except (OSError, EOFError, zlib.error) as error:
        # The last two mean a packed log that is cut off or damaged.
        raise OptionError(
            "LOG_UNREADABLE",
            f"The log {path} cannot be read: {error}.",
            hint="Check its name and permissions, and whether it is complete.",
        ) from error


def read_blocks(file: BinaryIO, block_bytes: int) -> Iterator[pa.Array]:
    """Yield the lines of a file, block by block, as one column each; the text is copied once.

    At most `LONGEST_LINE_BYTES` are kept of a line that spans blocks.
    """
    rest = b""
    while True:
        block = file.read(block_bytes)
        if not block:
            break
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            rest = (rest + block)[:LONGEST_LINE_BYTES]
            continue
        end = block.find(b"\n")
        yield cut_lines((rest + block[:end])[:LONGEST_LINE_BYTES] + block[end:cut])[0]
        rest = block[cut:]
    if rest:
        yield cut_lines(rest[:LONGEST_LINE_BYTES] + b"\n")[0]


def look_first(
    blocks: Mapping[int, Iterator[pa.Array]], look: Callable[[pa.Array], object]
) -> dict[int, Iterator[pa.Array]]:
    """Show lines of the first blocks to `look`; return the same blocks, with nothing missing."""
    firsts = {n: next(some, None) for n, some in blocks.items()}
    samples = [cut_sample(each) for each in firsts.values() if each is not None]
    if samples:
        look(pa.concat_arrays(samples))
    return {n: some if firsts[n] is None else chain([firsts[n]], some) for n, some in blocks.items()}
