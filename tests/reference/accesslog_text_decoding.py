"""The decoding of log texts, slow and readable, to compare with the kernel."""

from __future__ import annotations

import re

from penstock.apps.accesslog.detection.text_decoding_steps import ENTITIES

_APACHE = {
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
    b"\\": b"\\",
    b'"': b'"',
}
_JSON = {
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"b": b"\b",
    b"f": b"\f",
    b"\\": b"\\",
    b'"': b'"',
    b"/": b"/",
}
_BLANKS = re.compile(rb"[ \t\n\v\f\r]+")


def encode_character(code: int) -> bytes:
    """Encode a character in lower case; full-width ones become ASCII, and a zero becomes nothing."""
    if 0xFF01 <= code <= 0xFF5E:
        code -= 0xFEE0
    if code == 0xA0:
        code = 0x20
    if code == 0:
        return b""
    if code < 0x80:
        return bytes([code]).lower()
    return chr(code).encode("utf-8", "surrogatepass")


def unescape_log(text: bytes, is_json: bool) -> bytes:
    """Undo the escapes of Apache or JSON; what is not an escape stays."""

    def undo(found: re.Match[bytes]) -> bytes:
        whole = found[0]
        if is_json and whole[1:2] == b"u":
            return encode_character(int(whole[2:], 16))
        if not is_json and whole[1:2] == b"x":
            return bytes([int(whole[2:], 16)])
        return (_JSON if is_json else _APACHE)[whole[1:2]]

    pattern = rb'\\(?:u[0-9a-fA-F]{4}|[nrtbf\\"/])' if is_json else rb'\\(?:x[0-9a-fA-F]{2}|[nrtbfv\\"])'
    return re.sub(pattern, undo, text).replace(b"\0", b"").lower()


def undo_percent(text: bytes) -> bytes:
    def undo(found: re.Match[bytes]) -> bytes:
        if found[1] is not None:
            return encode_character(int(found[1], 16))
        return bytes([int(found[2], 16)])

    return re.sub(rb"%(?:u([0-9a-f]{4})|([0-9a-f]{2}))", undo, text).replace(b"\0", b"").lower()


def fold_unicode(text: bytes) -> bytes:
    out = b""
    at = 0
    while at < len(text):
        lead = text[at]
        more = 0 if lead < 0xC0 else 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3 if lead < 0xF8 else 0
        tail = text[at + 1 : at + 1 + more]
        if more and len(tail) == more and all(byte & 0xC0 == 0x80 for byte in tail):
            code = lead & (0x7F >> (more + 1))
            for byte in tail:
                code = code << 6 | byte & 0x3F
            if code < 0x80 or code == 0xA0 or 0xFF01 <= code <= 0xFF5E:
                out += encode_character(code)
            else:
                out += text[at : at + 1 + more]
            at += 1 + more
            continue
        out += b" " if lead == 0xA0 else text[at : at + 1]
        at += 1
    return out


def undo_entities(text: bytes) -> bytes:
    def undo(found: re.Match[bytes]) -> bytes:
        if found[3] is not None:
            name = found[3].decode()
            return encode_character(ord(ENTITIES[name])) if name in ENTITIES else found[0]
        code = int(found[1], 16) if found[1] is not None else int(found[2])
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return found[0]
        return encode_character(code)

    return re.sub(rb"&(?:#x([0-9a-f]{1,8});?|#([0-9]{1,8});?|([a-z]{1,8});)", undo, text)


def undo_script_escapes(text: bytes) -> bytes:
    def undo(found: re.Match[bytes]) -> bytes:
        short, braced, four, octal = found.groups()
        code = int(octal, 8) if octal is not None else int(short or braced or four, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            return found[0]
        return encode_character(code)

    pattern = rb"\\(?:x([0-9a-f]{2})|u\{([0-9a-f]{1,6})\}|u([0-9a-f]{4})|([0-3][0-7]{2}))"
    return re.sub(pattern, undo, text)


def drop_comments(text: bytes) -> bytes:
    out = b""
    at = 0
    kept_open = False
    while at < len(text):
        if text.startswith(b"/*!", at):
            found = re.compile(rb"/\*![0-9]*").match(text, at)
            assert found
            at, out, kept_open = found.end(), out + b" ", True
        elif text.startswith(b"/*", at) and text.find(b"*/", at + 2) >= 0:
            at, out = text.find(b"*/", at + 2) + 2, out + b" "
        elif kept_open and text.startswith(b"*/", at):
            at, out, kept_open = at + 2, out + b" ", False
        else:
            out, at = out + text[at : at + 1], at + 1
    return out


def fold_blanks(text: bytes) -> bytes:
    return _BLANKS.sub(lambda run: b"\n" if re.search(rb"[\r\n]", run[0]) else b" ", text)


def decode_region(text: bytes, is_json: bool, query: bool) -> bytes:
    text = unescape_log(text, is_json)
    for number in range(3):
        if number == 0 and query:
            text = text.replace(b"+", b" ")
        before = text
        text = undo_percent(text)
        if text == before:
            break
    text = undo_entities(fold_unicode(text))
    return fold_blanks(drop_comments(undo_script_escapes(text)))


def squeeze_path(path: bytes) -> bytes:
    out = b""
    for byte in path.replace(b"\\", b"/"):
        if byte == 0x2F and out.endswith(b"/") and not (len(out) > 1 and out[-2:-1] == b":"):
            continue
        if byte == 0x2F and out.endswith(b"/."):
            out = out[:-1]
            continue
        out += bytes([byte])
    return out


def make_bare(text: bytes) -> bytes:
    """Return the text without the characters that shells ignore."""
    text = re.sub(rb"\$(?:\{ifs\}|ifs)|\$[@*0-9]|['\"\\^]", lambda at: b" " if b"i" in at[0] else b"", text)
    return re.sub(rb"([ \t\n\v\f\r])[ \t\n\v\f\r]+", rb"\1", text)


def decode_target(text: bytes, is_json: bool) -> tuple[bytes, bytes]:
    """Return (path and query, the path alone)."""
    path, mark, query = text.partition(b"?")
    path = squeeze_path(decode_region(path, is_json, query=False))
    return path + mark + (decode_region(query, is_json, query=True) if mark else b""), path
