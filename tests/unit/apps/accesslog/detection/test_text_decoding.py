"""Decoding: the kernel compared with its slow twin, before a protected page, in a fixed number of passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.accesslog.detection import text_decoding_kernel as d
from penstock.apps.accesslog.detection.rule_set import TRAITS
from penstock.apps.accesslog.detection.text_decoding import DecodedTexts, Texts, decode
from tests.reference.accesslog_text_decoding import decode_region, decode_target, make_bare, unescape_log
from tests.support.guard_page import GuardedMemory, guarded_array

_PIECES = [
    *(
        b"%",
        b"%25",
        b"%2",
        b"%41",
        b"%u0041",
        b"%uff0e",
        b"%00",
        b"%c0%af",
        b"%e0%80%ae",
        b"%ef%bc%8f",
        b"%a0",
    ),
    *(b"\\x41", b"\\", b"\\\\", b"\\u0041", b"\\u{61}", b"\\101", b"\\n", b'\\"', b"+", b" ", b"\t", b"\r\n"),
    *(b"&lt;", b"&#60", b"&#x3c;", b"&amp;", b"&#x110000;", b"/*", b"*/", b"/*!50000", b"/**/", b"/", b"//"),
    *(b"..", b"?", b"a", b"B", b"'", b'"', b"$", b"${IFS}", b"$ifs", b"$@", b"^", b":", b"\xc0\xaf", b"\xff"),
    *(b"/./", b"0", b"u"),
]
texts = st.lists(st.sampled_from(_PIECES) | st.binary(max_size=3), max_size=14).map(b"".join)


def decode_one(text: bytes, kind: int = d.TARGET, is_json: bool = False) -> DecodedTexts:
    data = GuardedMemory(max(1, len(text))).place(text)
    size = np.array([len(text)], np.int32)
    given = Texts(data, np.zeros(1, np.int32), size, np.array([kind], np.int8), np.array([is_json]))
    return decode(given)


def see(text: str) -> set[str]:
    seen = int(decode_one(text.encode()).places[0, d.SEEN])
    return {name for bit, name in enumerate(TRAITS) if seen >> bit & 1}


@given(texts, st.booleans())
def test_a_target_is_decoded_as_its_twin_does(text: bytes, is_json: bool) -> None:
    decoded = decode_one(text, is_json=is_json)
    whole, path = decode_target(text, is_json)
    places = decoded.places[0]
    assert decoded.whole(0) == whole
    assert decoded.out[places[d.WHOLE_AT] : places[d.PATH_END]].tobytes() == path


@given(texts, st.booleans())
def test_other_texts_are_decoded_as_their_twin_does(text: bytes, is_json: bool) -> None:
    assert decode_one(text, d.AGENT, is_json).whole(0) == decode_region(text, is_json, query=False)
    assert decode_one(text, d.REFERRER, is_json).whole(0) == decode_region(text, is_json, query=True)
    assert decode_one(text, d.REQUEST, is_json).whole(0) == unescape_log(text, is_json)


@given(texts)
def test_the_bare_text_is_that_of_its_twin(text: bytes) -> None:
    decoded = decode_one(text)
    bare = decoded.bare(0)
    assert bare in (b"", make_bare(decoded.whole(0)))
    if re.search(rb"['\"\\^$]", decoded.whole(0)):
        assert bare == make_bare(decoded.whole(0))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("/%2541", {"double"}),
        ("/?x=%00", {"nul"}),
        ("/%c0%af", {"overlong"}),
        ("/?x=%u0041", {"unicode_escape"}),
        ("/?x=a/**/b", {"comment"}),
        ("/?x=&lt;", {"entity"}),
        ("/?x=%zz", {"bad_escape"}),
        ("/?x=%01", {"control"}),
        ("/plain?x=1&y=2", set()),
    ],
)
def test_what_was_met_on_the_way_is_kept(text: str, seen: set[str]) -> None:
    assert see(text) == seen


def test_a_text_outside_of_its_buffer_is_empty() -> None:
    data = guarded_array(4, np.uint8)
    data[:] = np.frombuffer(b"/abc", np.uint8)
    starts = np.array([0, 2, -1, 9, 0, 4], np.int32)
    lengths = np.array([4, 3, 2, 1, -1, 0], np.int32)
    out = guarded_array(8, np.uint8)
    places = np.zeros((6, d.PLACES_WIDTH), np.int64)
    kinds, is_json = np.zeros(6, np.int8), np.zeros(6, np.bool_)
    assert d.decode_texts(data, starts, lengths, kinds, is_json, 0, out, places) == 6
    decoded = DecodedTexts(out, places, kinds)
    assert [decoded.whole(number) for number in range(6)] == [b"/abc", b"", b"", b"", b"", b""]


def test_a_text_without_room_is_left_for_the_next_call() -> None:
    data = np.frombuffer(b"/abcd", np.uint8)
    one = np.zeros(2, np.int32), np.full(2, 5, np.int32), np.zeros(2, np.int8), np.zeros(2, np.bool_)
    out, places = guarded_array(14, np.uint8), np.zeros((2, d.PLACES_WIDTH), np.int64)
    assert d.decode_texts(data, *one, 0, out, places) == 1
    assert d.decode_texts(data, *one, 1, out, places) == 2


def test_double_length_takes_at_most_double_the_steps() -> None:
    """Counted in plain Python, where every access to a byte can be counted."""
    program = textwrap.dedent(
        """
        import numpy as np
        from penstock.apps.accesslog.detection import text_decoding_kernel as d

        class Counted:
            def __init__(self, array):
                self.array, self.size, self.looks = array, array.size, 0
            def __getitem__(self, at):
                self.looks += 1
                return self.array[at]
            def __setitem__(self, at, value):
                self.array[at] = value

        def count(text):
            data, out = Counted(np.frombuffer(text, np.uint8)), Counted(np.empty(2 * len(text), np.uint8))
            ones = np.zeros(1, np.int32), np.array([len(text)], np.int32)
            rest = np.zeros(1, np.int8), np.zeros(1, np.bool_)
            d.decode_texts(data, *ones, *rest, 0, out, np.zeros((1, d.PLACES_WIDTH), np.int64))
            return data.looks + out.looks

        for piece in (b"/*", b"*/", b"/**/", b"%25", b"%2525252541", b"&#x41;", b"&lt", b"//", b"$ifs"):
            for before in (b"/?", b"/"):
                short, long = count(before + piece * 200), count(before + piece * 400)
                assert long <= 2.05 * short + 50, (piece, short, long)
        """
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "NUMBA_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
