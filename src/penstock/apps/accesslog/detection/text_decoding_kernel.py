"""The decoding kernel: turns texts of log lines into what an attacked program would have seen, in lower case.

Rules: every step writes at most as many bytes as it reads, so all of them work in place, in a buffer of the
text's own size. Every step is one pass, and the number of passes is fixed, so the time is linear in the text.
Each length is checked against the buffer. What a step has met is kept as a trait, which a rule may ask for.

The steps of a region (a path, a query or another whole text), in order: escapes of the log (Apache's or
JSON's), percent signs up to three times (`%41`, `%u0041`, `+` in queries the first time), bytes that are not
the shortest UTF-8 and full-width letters, HTML entities, escapes of scripts (`\\x41`, `\\u0041`, `\\101`),
comments (`/* */` is a blank, `/*!50000 x */` is x), runs of blanks. A path is then squeezed: `\\` is `/`, and
`//` and `/./` are `/`, while `..` stays visible. The bare text is all of it once more, without what shells
ignore: quotes, backslashes, carets, `$@`, `$1`; `${IFS}` is a blank. A `request` is only unescaped.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.detection import text_decoding_steps as s
from penstock.kernels.compilation import kernel, part

# Kinds of texts.
TARGET, AGENT, REFERRER, METHOD, PROTOCOL, REQUEST = range(6)
#: Columns of `places`, per text: the path or the whole, the query, the bare text.
WHOLE_AT, PATH_END, QUERY_AT, WHOLE_END, BARE_AT, BARE_END, SEEN = range(7)
PLACES_WIDTH = 7

PERCENT_ROUNDS = 3


@kernel
def decode_texts(data, starts, lengths, kinds, is_json, first, out, places):
    """Decode texts from `first` on into `out`; return the first that did not fit, or `starts.size`.

    A text needs room for twice its own length: once decoded, once bare. A text that is not inside `data` is
    empty. `places` gets one row per text, with positions in `out`.
    """
    at = np.int64(0)
    for text in range(first, starts.size):
        begin, size = np.int64(starts[text]), np.int64(lengths[text])
        if begin < 0 or size < 0 or begin > data.size or size > data.size - begin:
            begin, size = np.int64(0), np.int64(0)
        if out.size - at < 2 * size:
            return text
        at = decode_text(data, begin, begin + size, kinds[text], is_json[text], out, at, places, text)
    return starts.size


@part
def decode_text(data, begin, end, kind, is_json, out, at, places, text):
    """Decode one text from `at` on; return the first free byte behind it."""
    places[text, WHOLE_AT] = at
    if kind == REQUEST:
        stop, seen = copy_lower(data, begin, end, is_json, out, at)
        places[text, PATH_END] = stop
        places[text, QUERY_AT] = stop
        places[text, WHOLE_END] = stop
        places[text, BARE_AT] = stop
        places[text, BARE_END] = stop
        places[text, SEEN] = seen & 0xFFFF
        return stop
    split = end
    seen = np.int64(0)
    body = at
    stop = at
    if kind == TARGET:
        split = begin
        while split < end and data[split] != 0x3F:
            split += 1
        stop, seen = decode_region(data, begin, split, is_json, False, out, at)
        stop = s.squeeze_path(out, at, stop)
        places[text, PATH_END] = stop
        body = stop
        if split < end:
            out[stop] = 0x3F
            body = stop + 1
            stop, more = decode_region(data, split + 1, end, is_json, True, out, body)
            seen |= more
    else:
        stop, seen = decode_region(data, begin, end, is_json, kind == REFERRER, out, at)
        places[text, PATH_END] = stop
    places[text, QUERY_AT] = body
    places[text, WHOLE_END] = stop
    places[text, BARE_AT] = stop
    places[text, SEEN] = seen & 0xFFFF
    if seen & s.QUOTE_SIGN != 0:
        bare_end = s.write_bare(out, at, stop, stop)
        places[text, BARE_END] = bare_end
        return bare_end
    places[text, BARE_END] = stop
    return stop


@part
def decode_region(data, begin, end, is_json, plus, out, at):
    """Do all steps but the squeeze; return (the end in `out`, what was seen). With `plus`, + is a blank."""
    stop, seen = copy_lower(data, begin, end, is_json, out, at)
    if seen & s.PERCENT_SIGN != 0 or (plus and seen & s.PLUS_SIGN != 0):
        rounds = 0
        again = True
        while again and rounds < PERCENT_ROUNDS:
            stop, met, again = undo_percent(out, at, stop, plus and rounds == 0, rounds == 0)
            if again and rounds > 0:
                seen |= s.DOUBLE
            rounds += 1
            seen |= met
            again = again and met & s.PERCENT_SIGN != 0
    if seen & s.HIGH_SIGN != 0:
        stop, met = s.fold_unicode(out, at, stop)
        seen |= met
    if seen & s.AMPERSAND_SIGN != 0:
        stop, met = s.undo_entities(out, at, stop)
        seen |= met
    if seen & s.BACKSLASH_SIGN != 0:
        stop, met = s.undo_script_escapes(out, at, stop)
        seen |= met
    if seen & s.STAR_SIGN != 0:
        stop, met = s.drop_comments(out, at, stop)
        seen |= met
    if seen & s.BLANK_SIGN != 0:
        stop = s.fold_blanks(out, at, stop)
    return stop, seen


@part
def copy_lower(data, begin, end, is_json, out, at):
    """Copy in lower case, undoing the log's own escapes; return (the end in `out`, what was seen)."""
    seen = np.int64(0)
    to = at
    i = begin
    while i < end:
        c = np.int64(data[i])
        i += 1
        if c == 0x5C and i < end:
            e = np.int64(data[i])
            if not is_json and e == 0x78 and end - i >= 3:  # \x41
                high, low = s.HEX[data[i + 1]], s.HEX[data[i + 2]]
                if high >= 0 and low >= 0:
                    c = high * 16 + low
                    i += 3
            elif is_json and e == 0x75:  # \u0041
                code = s.read_hex(data, i + 1, end, 4)
                if code >= 0:
                    to, met = s.put(out, to, code)
                    seen |= met
                    i += 5
                    continue
            elif e == 0x5C or e == 0x22 or (is_json and e == 0x2F):
                c = e
                i += 1
            elif e == 0x6E:
                c = np.int64(0x0A)
                i += 1
            elif e == 0x72:
                c = np.int64(0x0D)
                i += 1
            elif e == 0x74:
                c = np.int64(0x09)
                i += 1
            elif e == 0x62:
                c = np.int64(0x08)
                i += 1
            elif e == 0x66:
                c = np.int64(0x0C)
                i += 1
            elif not is_json and e == 0x76:
                c = np.int64(0x0B)
                i += 1
        if c == 0:
            seen |= s.NUL
            continue
        out[to] = s.LOWER[c]
        seen |= np.int64(s.SIGNS[c])
        to += 1
    return to, seen


@part
def undo_percent(out, at, end, plus, first):
    """Undo one round of %XX; return (the new end, what was met, whether anything changed)."""
    to, i = at, at
    seen = np.int64(0)
    changed = False
    while i < end:
        c = np.int64(out[i])
        i += 1
        if c == 0x25:
            code = s.read_hex(out, i, end, 2)
            if code >= 0:
                changed = True
                c = code
                i += 2
            elif i < end and out[i] == 0x75:
                code = s.read_hex(out, i + 1, end, 4)
                if code >= 0:
                    changed = True
                    i += 5
                    to, met = s.put(out, to, code)
                    seen |= met | s.UNICODE_ESCAPE
                    continue
                if first:
                    seen |= s.BAD_ESCAPE
            elif first:
                seen |= s.BAD_ESCAPE
        elif c == 0x2B and plus:
            c = np.int64(0x20)
        if c == 0:
            seen |= s.NUL
            continue
        out[to] = s.LOWER[c]
        seen |= np.int64(s.SIGNS[c])
        to += 1
    return to, seen, changed
