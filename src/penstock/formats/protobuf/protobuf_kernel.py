"""The Protobuf kernel: decodes serialized messages directly into columns.

The message types come from a table of fields (made by `protobuf_schema`), sorted by number within each
message. Rules: a tag and a number have at most ten bytes, a length stays inside its message, unknown fields
are skipped (groups too, to a fixed depth), the last of several values of one field counts, and of a oneof
only the last member. A message in two pieces (allowed, but no library writes it) is reported as SPLIT, so
that the caller can join the pieces. A map that has a key twice is also reported as SPLIT.
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import numpy as np

from penstock.formats.columns import column_builder as s
from penstock.kernels import number_and_time_parsing as n
from penstock.kernels.compilation import kernel, load_word, part
from penstock.kernels.text_scanning import is_utf8

# Columns of the table of fields.
NUMBER, KIND, NODE, REPEATED, ONEOF, MESSAGE, NAMES_AT, NAMES_COUNT = range(8)
FIELD_WIDTH = 8
#: Columns of the table of messages: first field, place after the last field, node, whether it is a map entry.
MESSAGE_WIDTH = 4

# The encodings of a field.
VARINT, ZIGZAG, BOOL, INT32, UINT32, SINT32, UINT64, ENUM, FIXED64, SFIXED32, UFIXED32 = range(11)
DOUBLE, FLOAT, STRING, BYTES, NESTED = range(11, 16)

# Faults of a row.
CUT_OFF, BAD_NUMBER, BAD_TAG, BAD_LENGTH, BAD_TEXT, TOO_DEEP, SPLIT = range(1, 8)
NO_FRAME, NO_SCHEMA, WRONG_MESSAGE = range(8, 11)

MAX_DEPTH = 64
#: The most entries of a map that are compared with each other. Larger maps are left to Google's library.
MAX_COMPARED = 128

# The entries of `state`: the node of a fault; 1 if split messages are joined and duplicate keys removed.
NODE_AT, JOINED = 0, 1
STATE_WIDTH = 2


@kernel
def decode_rows(buf, starts, ends, present, roots, row, columns, plan, frames, state, faults, nodes):
    """Append the rows from `row` onwards and return the first row not done. If there is one, a node was full.

    `roots[row]` is the row's message type, or a negated fault.
    """
    while row < len(present):
        if present[row] == 0:
            s.put_null(columns, 0)
            row += 1
            continue
        code = -roots[row]
        state[NODE_AT] = 0
        if roots[row] >= 0:
            code = decode_row(buf, starts[row], ends[row], roots[row], columns, plan, frames, state)
        if code != s.GOOD:
            s.truncate(columns, 0, row)
            if code == s.FULL:
                return row
            s.put_null(columns, 0)
            faults[row] = code
            nodes[row] = state[NODE_AT]
        row += 1
    return row


@part
def decode_row(buf, at, end, root, columns, plan, frames, state):
    """Append one message and everything in it, and return GOOD, FULL or the fault."""
    fields, messages, enums = plan
    table = columns.table
    depth = 0
    message = root
    if not s.put(columns, messages[root, 2], np.int64(0)):
        return s.FULL
    want = table[messages[root, 2], s.COUNT]  # how many entries each part has after the message
    while True:
        while at >= end:  # the message ends here, and perhaps the one around it does, too
            if not close_message(columns, messages, message, want):
                return s.FULL
            if (
                messages[message, 3]
                and state[JOINED] == 0
                and may_have_twin(columns, messages[message, 2], want)
            ):
                return SPLIT
            if depth == 0:
                return s.GOOD
            depth -= 1
            message, end, want = frames[depth, 0], frames[depth, 1], frames[depth, 2]
        tag, at, _ = n.read_varint(buf, at, end)
        if at < 0:
            return -at
        number, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        if tag > np.uint64(0xFFFFFFFF) or number < 1:
            return BAD_TAG
        field = find_field(fields, messages[message, 0], messages[message, 1], number)
        if field < 0:
            at = skip_value(buf, at, end, wire, number)
            if at < 0:
                return -at
            continue
        kind, target = fields[field, KIND], fields[field, NODE]
        state[NODE_AT] = target
        expected = wire_type(kind)
        repeated = fields[field, REPEATED] != 0
        packed = repeated and wire == 2 and expected != 2
        if wire != expected and not packed:  # not this field's encoding: treat the field as unknown
            at = skip_value(buf, at, end, wire, number)
            if at < 0:
                return -at
            continue
        if not repeated:
            if kind == NESTED and table[target, s.COUNT] == want:
                return SPLIT
            take_back(columns, fields, messages, message, field, want)
        if wire != 2:
            at = put_value(buf, at, end, kind, target, columns, fields, field, enums)
            if at < 0:
                return s.FULL if at == -100 else -at
            continue
        raw, at, _ = n.read_varint(buf, at, end)
        if at < 0:
            return -at
        size = np.int64(raw)
        if size < 0 or size > end - at:
            return BAD_LENGTH
        stop = at + size
        if packed:  # many numbers in one piece
            while at < stop:
                at = put_value(buf, at, stop, kind, target, columns, fields, field, enums)
                if at < 0:
                    return s.FULL if at == -100 else -at
        elif kind == NESTED:
            if depth >= MAX_DEPTH:
                return TOO_DEEP
            frames[depth, 0], frames[depth, 1], frames[depth, 2] = message, end, want
            depth += 1
            message, end = fields[field, MESSAGE], stop
            if messages[message, 3]:
                want = table[messages[message, 2] + 1, s.COUNT] + 1
            else:
                if not s.put(columns, messages[message, 2], np.int64(0)):
                    return s.FULL
                want = table[messages[message, 2], s.COUNT]
        else:
            if kind == STRING and not is_utf8(buf, at, stop):
                return BAD_TEXT
            if not s.put_text(columns, target, buf, at, size):
                return s.FULL
            at = stop


@part
def find_field(fields, first, stop, number):
    """Return the row of the message's field with this number, found by bisection; -1 if there is none."""
    while first < stop:
        middle = (first + stop) >> 1
        here = fields[middle, NUMBER]
        if here == number:
            return middle
        if here < number:
            first = middle + 1
        else:
            stop = middle
    return np.int64(-1)


@part
def wire_type(kind):
    if kind <= ENUM:
        return 0
    if kind in (FIXED64, DOUBLE):
        return 1
    if kind in (SFIXED32, UFIXED32, FLOAT):
        return 5
    return 2


@part
def skip_value(buf, at, end, wire, number):
    """Return the position after a value that is not wanted, or a negated fault."""
    if wire == 0:
        _, at, _ = n.read_varint(buf, at, end)
        return at
    if wire == 1:
        return at + 8 if end - at >= 8 else np.int64(-CUT_OFF)
    if wire == 5:
        return at + 4 if end - at >= 4 else np.int64(-CUT_OFF)
    if wire == 2:
        raw, at, _ = n.read_varint(buf, at, end)
        if at < 0:
            return at
        size = np.int64(raw)
        return at + size if 0 <= size <= end - at else np.int64(-BAD_LENGTH)
    return skip_group(buf, at, end, number) if wire == 3 else np.int64(-BAD_TAG)


@part
def skip_group(buf, at, end, number):
    """Return the position after the end of a group, or a negated fault."""
    depth = 1
    # Comparing the numbers of all open groups would need memory. So only the outermost group's number is
    # compared, and the ends of the inner groups are counted.
    while depth > 0:
        tag, at, _ = n.read_varint(buf, at, end)
        if at < 0:
            return at
        inner, wire = np.int64(tag >> np.uint64(3)), np.int64(tag & np.uint64(7))
        if inner < 1 or inner > 0x1FFFFFFF:
            return np.int64(-BAD_TAG)
        if wire == 3:
            depth += 1
            if depth > MAX_DEPTH:
                return np.int64(-TOO_DEEP)
        elif wire == 4:
            depth -= 1
            if depth == 0 and inner != number:
                return np.int64(-BAD_TAG)
        elif wire == 0:
            _, at, _ = n.read_varint(buf, at, end)
        elif wire == 1:
            at = at + 8 if end - at >= 8 else np.int64(-CUT_OFF)
        elif wire == 5:
            at = at + 4 if end - at >= 4 else np.int64(-CUT_OFF)
        elif wire == 2:
            raw, at, _ = n.read_varint(buf, at, end)
            if at >= 0:
                size = np.int64(raw)
                at = at + size if 0 <= size <= end - at else np.int64(-BAD_LENGTH)
        else:
            return np.int64(-BAD_TAG)
        if at < 0:
            return at
    return at


@part
def put_value(buf, at, end, kind, node, columns, fields, field, enums):
    """Append one number; return the position after it, a negated fault, or -100 if there is no room."""
    done = False
    if kind <= ENUM:
        raw, at, _ = n.read_varint(buf, at, end)
        if at < 0:
            return at
        value = np.int64(raw)
        if kind == ZIGZAG:
            value = np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))
        elif kind == BOOL:
            value = np.int64(raw != np.uint64(0))
        elif kind in (INT32, ENUM):
            value = np.int64(np.int32(value))
        elif kind == UINT32:
            value = value & 0xFFFFFFFF
        elif kind == SINT32:
            small = raw & np.uint64(0xFFFFFFFF)
            value = np.int64(np.int32(np.int64(small >> np.uint64(1)) ^ -np.int64(small & np.uint64(1))))
        if kind == UINT64:
            done = s.put_wide(columns, node, np.uint64(0), raw)
        elif kind == ENUM:
            done = put_symbol(columns, node, value, fields, field, enums)
        else:
            done = s.put(columns, node, value)
    elif kind in (FIXED64, DOUBLE):
        if end - at < 8:
            return np.int64(-CUT_OFF)
        word = load_word(buf, at)
        if kind == FIXED64 and columns.table[node, s.WIDTH] == 2:
            done = s.put_wide(columns, node, np.uint64(0), word)
        else:
            done = s.put(columns, node, np.int64(word))
        at += 8
    else:
        if end - at < 4:
            return np.int64(-CUT_OFF)
        if kind == FLOAT:
            done = s.put_real(columns, node, n.float_at(buf, at))
        else:
            value = np.int64(0)
            for i in range(4):
                value |= np.int64(buf[at + i]) << np.int64(8 * i)
            if kind == SFIXED32:
                value = np.int64(np.int32(value))
            done = s.put(columns, node, value)
        at += 4
    return at if done else np.int64(-100)


@part
def put_symbol(columns, node, value, fields, field, enums):
    """Append an enum's name, or the digits of a number without a name (from a newer producer); return False
    if there is no room."""
    table, text = columns.table, columns.text
    first, count = fields[field, NAMES_AT], fields[field, NAMES_COUNT]
    low, high = first, first + count
    while low < high:
        middle = (low + high) >> 1
        if enums[middle, 0] < value:
            low = middle + 1
        else:
            high = middle
    if low < first + count and enums[low, 0] == value:
        return s.put_text(columns, node, text, enums[low, 1], enums[low, 2])
    if not s.has_room(columns, node) or not s.has_text_room(columns, node, 11):
        return False
    begin = table[node, s.TEXT_BASE] + table[node, s.TEXT_USED]
    at = begin
    rest = -value if value < 0 else value
    if value < 0:
        text[at] = 0x2D
        at += 1
    scale = np.int64(1)
    while scale <= rest // 10:
        scale *= 10
    while scale > 0:
        text[at] = 0x30 + (rest // scale) % 10
        at += 1
        scale //= 10
    return s.end_text(columns, node, at - begin)


@part
def close_message(columns, messages, message, want):
    """Fill in absent fields; return False if there is no room. The two fields of a map entry are the nodes
    after the map's node."""
    table = columns.table
    node = messages[message, 2]
    if messages[message, 3] == 0:
        return s.close_struct(columns, node)
    child = node + 1
    while child < table[node, s.STOP]:
        if table[child, s.COUNT] < want:
            if table[child, s.MISSING] == s.EMPTY_STRUCT:
                if not s.put(columns, child, np.int64(0)):
                    return False
                if not s.close_struct(columns, child):
                    return False
            elif not s.put_missing(columns, child):
                return False
        child = table[child, s.STOP]
    return True


@part
def may_have_twin(columns, node, want):
    """Return whether an open map's last key is a duplicate, or whether there are too many to compare."""
    table, slots, text = columns.table, columns.slots, columns.text
    entries = table[node, s.COUNT]
    first = slots[table[node, s.BASE] + entries - 1] if entries > 0 else np.int64(0)
    last = want - 1
    if last - first > MAX_COMPARED:
        return True
    key = node + 1
    base, text_base = table[key, s.BASE], table[key, s.TEXT_BASE]
    if table[key, s.KIND] != s.STRING:
        for i in range(first, last):
            if slots[base + i] == slots[base + last] and table[key, s.WIDTH] == 1:
                return True
            if table[key, s.WIDTH] == 2 and slots[base + 2 * i] == slots[base + 2 * last]:
                return True  # unsigned 64-bit keys: the upper half is always zero
        return False
    begin = slots[base + last - 1] if last > 0 else np.int64(0)
    size = slots[base + last] - begin
    for i in range(first, last):
        other = slots[base + i - 1] if i > 0 else np.int64(0)
        if slots[base + i] - other == size:
            same = True
            for j in range(size):
                if text[text_base + other + j] != text[text_base + begin + j]:
                    same = False
                    break
            if same:
                return True
    return False


@part
def take_back(columns, fields, messages, message, field, want):
    """Drop the present value of a field that is not repeated, and those of its oneof, before a new value."""
    table = columns.table
    oneof = fields[field, ONEOF]
    if table[fields[field, NODE], s.COUNT] == want:
        s.truncate(columns, fields[field, NODE], want - 1)
    if oneof >= 0:
        for other in range(messages[message, 0], messages[message, 1]):
            node = fields[other, NODE]
            if other != field and fields[other, ONEOF] == oneof and table[node, s.COUNT] == want:
                s.truncate(columns, node, want - 1)


@kernel
def read_indexes(buf, starts, ends, indexes):
    """Read the message indexes after a registry's frame and move `starts` past them.

    A row of `indexes` becomes the path to the message in its file, with -1 where it ends. If the path is cut
    off or does not fit, the row begins with -2.
    """
    for row in range(len(starts)):
        for i in range(indexes.shape[1]):
            indexes[row, i] = -1
        at, end = starts[row], ends[row]
        raw, at, _ = n.read_varint(buf, at, end)
        count = np.int64(raw >> np.uint64(1))  # zigzag; a negative one is odd
        if at < 0 or raw & np.uint64(1) or count > indexes.shape[1]:
            indexes[row, 0] = -2
            continue
        if count == 0:
            indexes[row, 0] = 0
        for i in range(count):
            raw, at, _ = n.read_varint(buf, at, end)
            if at < 0 or raw & np.uint64(1) or raw > np.uint64(2_000_000):
                indexes[row, 0] = -2
                break
            indexes[row, i] = np.int64(raw >> np.uint64(1))
        if at >= 0:
            starts[row] = at
