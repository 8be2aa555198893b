"""The decoded texts of log lines, which `rule_matching` looks at, in one buffer.

Rule: equal texts are decoded once. Most agents and referrers of a batch repeat, and half of the targets. Each
distinct one of a batch is decoded and matched once, and its hits go to all lines that have it. Nothing is
kept between batches, so what came before cannot change a verdict.

Why not decode in Python (`urllib.parse.unquote` and friends): that takes 2 microseconds for each text and
step, and each of these functions stops at what an attacker mixes in.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.apps.accesslog.detection import text_decoding_kernel as d


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by number: where each one is in the log's bytes."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int32]
    lengths: NDArray[np.int32]
    kinds: NDArray[np.int8]  # of text_decoding_kernel: TARGET, AGENT ...
    is_json: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DecodedTexts:
    """The decoded texts. `places` says where each is in `out`; text_decoding_kernel names its columns."""

    out: NDArray[np.uint8]
    places: NDArray[np.int64]
    kinds: NDArray[np.int8]

    def whole(self, number: int) -> bytes:
        """Return one decoded text (a target with its query)."""
        return self._cut(number, d.WHOLE_AT, d.WHOLE_END)

    def bare(self, number: int) -> bytes:
        """Return the same without what shells ignore; empty if nothing is left out."""
        return self._cut(number, d.BARE_AT, d.BARE_END)

    def _cut(self, number: int, begin: int, end: int) -> bytes:
        return self.out[self.places[number, begin] : self.places[number, end]].tobytes()


def decode(texts: Texts) -> DecodedTexts:
    """Return all texts decoded, in a time that is linear in their length."""
    room = 2 * int(np.maximum(texts.lengths, 0).sum(dtype=np.int64))
    out = np.empty(room, np.uint8)
    places = np.zeros((texts.starts.size, d.PLACES_WIDTH), np.int64)
    done = d.decode_texts(texts.data, texts.starts, texts.lengths, texts.kinds, texts.is_json, 0, out, places)
    assert done == texts.starts.size, "there is room for each"
    return DecodedTexts(out, places, texts.kinds)
