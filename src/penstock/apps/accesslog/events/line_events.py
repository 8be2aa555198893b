"""Events: what the fold needs to know about a line, in a few columns, sorted into lanes by subject.

Rules. Every line with a client makes one event of that client. It makes events of its network and of its
fingerprint only if a rule counts it for those. An event carries numbers (addresses, hashes, hits), and text
only where a rule has hit (the request, cut, as evidence) or where the client is a host name. The texts of
agents, also cut, are beside the events of a lane, each at least once, because most lines share a few agents.
Every lane gets a batch, even an empty one, because each must learn how far the partition's clock has come.

Within the batch, times are moved up to the running maximum less the lateness. Only the fold knows what came
before the batch, and moves them up further. So the same lines have the same order in any batches.

    events = make_events(lines, findings, ruleset, partition=3, offsets=offsets, servers=None, lanes=16)
    events[5]    # what lane 5 has to fold
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.defence.behaviour_program import NET_BIT, PRINT_BIT, RuleProgram, compile_rules
from penstock.apps.accesslog.detection.detector import Findings
from penstock.apps.accesslog.detection.rule_set import RuleSet
from penstock.apps.accesslog.events import line_events_kernel as k
from penstock.apps.accesslog.events.subjects import CLIENT, NET, PRINT
from penstock.apps.accesslog.monitoring.load_counting import _clean_name
from penstock.apps.accesslog.parsing.line_parser import Lines
from penstock.apps.accesslog.texts.text_grouping import GroupedFields, check_grouped, group_lines

VERSION = 3
DEFAULT_LANES = 16
DEFAULT_LATENESS_US = 1_000_000
LONGEST_TEXT, LONGEST_AGENT = 200, 160

EVENTS = pa.schema(
    [
        ("kind", pa.int8()),
        ("high", pa.uint64()),  # the client, also where the subject is its network or fingerprint
        ("low", pa.uint64()),
        ("group", pa.uint64()),  # the fingerprint, where that is the subject
        ("time", pa.int64()),
        ("late", pa.int64()),  # by how many microseconds it was moved up
        ("server", pa.uint32()),
        ("offset", pa.int64()),
        ("path", pa.uint32()),
        ("agent", pa.uint32()),
        ("answer", pa.int8()),  # whether the target exists, and whether pages load it automatically
        ("hits", pa.list_(pa.field("rule", pa.int16(), nullable=False))),
        ("text", pa.binary()),
        ("host", pa.binary()),
    ]
)
#: The texts of agents, by their hashes in the events.
AGENTS = pa.schema([("agent", pa.uint32()), ("text", pa.binary())])
_AGENTS_SEEN = 1024
_AGENTS_KEY = b"penstock.agents"


@dataclass(frozen=True, slots=True)
class EventsHeader:
    """What a batch of events says about the lines it was made of; it travels in the schema's metadata."""

    partition: int
    first_offset: int
    max_us: int
    lines: int
    servers: dict[int, str]
    rules: str

    def pack(self) -> dict[str, str]:
        told = {
            "version": VERSION, "partition": self.partition, "first_offset": self.first_offset,
            "max_us": self.max_us, "lines": self.lines, "rules": self.rules,
            "servers": {str(key): name for key, name in self.servers.items()},
        }  # fmt: skip
        return {"penstock.events": json.dumps(told)}

    @classmethod
    def read(cls, schema: pa.Schema) -> EventsHeader:
        told = json.loads((schema.metadata or {})[b"penstock.events"])
        servers = {int(key): name for key, name in told["servers"].items()}
        return cls(told["partition"], told["first_offset"], told["max_us"], told["lines"], servers,
                   told["rules"])  # fmt: skip


def make_events(
    lines: Lines,
    findings: Findings,
    ruleset: RuleSet,
    *,
    partition: int,
    offsets: NDArray[np.int64],
    servers: pa.Array | pa.ChunkedArray | None = None,
    lanes: int = DEFAULT_LANES,
    lateness_us: int = DEFAULT_LATENESS_US,
    grouped: GroupedFields | None = None,
) -> dict[int, pa.RecordBatch]:
    """Return the events of some lines by lane.

    `offsets` and `servers` are those of the parsed lines or of all rows. `grouped` has the lines' texts if
    they are numbered already.
    """
    program = compile_rules(ruleset)
    count = len(lines)
    if count == 0:
        return {}
    if offsets.size != count:
        offsets = offsets[lines.rows]
    server_keys, server_names = _hash_servers(servers, lines, count)
    effective, late = np.empty(count, np.int64), np.empty(count, np.int64)
    most, _ = k.follow_clock(lines.time_us, lateness_us, effective, late)
    high, low, present, hosts = _read_clients(lines, grouped)
    rows, kinds, groups, hit_lists = _list_events(findings, program, count)
    picked = None if rows is None else rows
    columns: dict[str, Any] = {
        "high": high, "low": low, "time": effective, "late": late, "server": server_keys,
        "offset": offsets, "path": findings.path_hash.astype(np.uint32),
        "agent": findings.agent_hash.astype(np.uint32), "present": present,
        "answer": _judge_answers(lines, findings, program),
    }  # fmt: skip
    if picked is not None:
        columns = {name: values[picked] for name, values in columns.items()}
    starts, order = np.zeros(lanes + 1, np.int64), np.empty(kinds.size, np.int64)
    k.sort_into_lanes(
        columns["high"], columns["low"], kinds, groups, columns["present"], lanes,
        np.empty(kinds.size, np.int16), starts, order,
    )  # fmt: skip
    order = order[: starts[lanes]]
    line_of = order if picked is None else picked[order]
    header = EventsHeader(partition, int(offsets[0]), int(most), count, server_names, ruleset.digest)
    arrays = {
        "kind": pa.array(kinds[order]),
        "group": pa.array(groups[order]),
        "hits": _gather_hits(order, hit_lists),
        "text": _gather_texts(lines, line_of, hit_lists[1][order] > 0),
        "host": _gather_hosts(lines, line_of, columns["present"][order] == 2) if hosts else None,
    }
    for name in ("high", "low", "time", "late", "server", "offset", "path", "agent", "answer"):
        arrays[name] = pa.array(columns[name][order])
    if arrays["host"] is None:
        arrays["host"] = pa.nulls(order.size, pa.binary())
    schema = EVENTS.with_metadata(header.pack())
    whole = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    agents = _gather_agents(lines, line_of, columns["agent"][order], starts)
    made = {}
    for lane in range(lanes):
        events = whole.slice(starts[lane], starts[lane + 1] - starts[lane])
        made[lane] = events.replace_schema_metadata({**(schema.metadata or {}), _AGENTS_KEY: agents[lane]})
    return made


def _read_clients(
    lines: Lines, grouped: GroupedFields | None
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int8], bool]:
    """Return for each line the two halves of its client and its kind, and whether any client is a host."""
    grouped = group_lines(lines, ["client"]) if grouped is None else check_grouped(lines, grouped)
    clients = grouped["client"]
    count = len(clients)
    high, low, present = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.int8)
    hosts = k.read_clients(lines.data, clients.starts, clients.lengths, high, low, present)
    return clients.spread(high, 0), clients.spread(low, 0), clients.spread(present, 0), hosts > 0


def read_agents(schema: pa.Schema) -> pa.Table:
    """Return the texts of the agents of some events, as rows of `AGENTS`; one may occur twice."""
    packed = (schema.metadata or {}).get(_AGENTS_KEY)
    return pa.ipc.open_stream(packed).read_all() if packed else AGENTS.empty_table()


_HitLists = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int16]]


def _list_events(
    findings: Findings, program: RuleProgram, count: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int8], NDArray[np.uint64], _HitLists]:
    """Return each event's line (None: event n is of line n), kind, group and hits."""
    rules, rows = findings.hit_rules, findings.hit_rows
    keep = program.is_client_hit[rules] if rules.size else np.zeros(0, bool)
    client_rows, client_rules = rows[keep].astype(np.int64), rules[keep]
    counts = np.bincount(client_rows, minlength=count).astype(np.int64)
    firsts = np.cumsum(counts) - counts
    bits = program.groups[rules] if rules.size else np.zeros(0, np.uint8)
    if not program.all_groups and not bits.any():
        kinds = np.zeros(count, np.int8)
        return None, kinds, np.zeros(count, np.uint64), (firsts, counts, client_rules)
    parts_rows, parts_kinds = [np.arange(count)], [np.full(count, CLIENT, np.int8)]
    parts_firsts, parts_counts, parts_rules = [firsts], [counts], [client_rules]
    filled = client_rules.size
    for bit, kind in ((NET_BIT, NET), (PRINT_BIT, PRINT)):
        mine = (bits & bit) > 0
        some = np.bincount(rows[mine], minlength=count).astype(np.int64)
        chosen = np.arange(count) if program.all_groups & bit else np.flatnonzero(some)
        begins = np.cumsum(some) - some
        parts_rows.append(chosen)
        parts_kinds.append(np.full(chosen.size, kind, np.int8))
        parts_firsts.append(begins[chosen] + filled)
        parts_counts.append(some[chosen])
        parts_rules.append(rules[mine])
        filled += int(mine.sum())
    picked, kinds = np.concatenate(parts_rows), np.concatenate(parts_kinds)
    groups = np.where(kinds == PRINT, findings.print_hash[picked], np.uint64(0)).astype(np.uint64)
    return picked, kinds, groups, (
        np.concatenate(parts_firsts), np.concatenate(parts_counts), np.concatenate(parts_rules)
    )  # fmt: skip


def _judge_answers(lines: Lines, findings: Findings, program: RuleProgram) -> NDArray[np.int8]:
    """Return the bits FOUND and ASSET for each line. A redirect does not show that the target exists."""
    status = lines.status
    answers = np.zeros(len(lines), np.int8)
    answers[((status >= 200) & (status < 300)) | (status == 304)] = s.FOUND
    if program.asset >= 0:
        answers[findings.hit_rows[findings.hit_rules == program.asset]] |= s.ASSET
    return answers


def _hash_servers(
    servers: pa.Array | pa.ChunkedArray | None, lines: Lines, count: int
) -> tuple[NDArray[np.uint32], dict[int, str]]:
    if servers is None:
        return np.zeros(count, np.uint32), {0: ""}
    if isinstance(servers, pa.ChunkedArray):
        servers = servers.combine_chunks()
    if len(servers) != count:
        servers = servers.take(pa.array(lines.rows))
    coded = servers.dictionary_encode()
    names = [(each or b"") if isinstance(each, bytes) else (each or "").encode()
             for each in coded.dictionary.to_pylist()]  # fmt: skip
    names.append(b"")  # for lines without a server
    keys = np.array([zlib.crc32(name) for name in names], np.uint32)
    known = {int(key): _clean_server(name) for key, name in zip(keys, names, strict=True)}
    indices = coded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
    return keys[indices], known


def _clean_server(name: bytes) -> str:
    """Return a server's name as the monitor shows it, without control characters."""
    return "".join(each for each in _clean_name(name) if each.isprintable())


def _gather_hits(order: NDArray[np.int64], lists: _HitLists) -> pa.Array:
    firsts, counts, rules = lists
    offsets = np.empty(order.size + 1, np.int32)
    values = np.empty(int(counts[order].sum()), np.int16)
    k.gather_hits(order, firsts, counts, rules, offsets, values)
    kind = EVENTS.field("hits").type
    return pa.Array.from_buffers(kind, order.size, [None, pa.py_buffer(offsets)], children=[pa.array(values)])


def _gather_texts(lines: Lines, line_of: NDArray[np.int64], wanted: NDArray[np.bool_]) -> pa.Array:
    """Return the requests of lines that a rule has hit; null for the others."""
    some = line_of[wanted]
    if not some.size:
        return pa.nulls(line_of.size, pa.binary())
    at, sizes = np.empty(some.size, np.int64), np.empty(some.size, np.int64)
    starts, lengths = lines.starts, lines.lengths
    total = k.span_requests(
        lines.data.size, starts["method"], lengths["method"], starts["target"], lengths["target"],
        starts["protocol"], lengths["protocol"], some, LONGEST_TEXT, at, sizes,
    )  # fmt: skip
    return _copy_texts(lines, at, sizes, total, wanted)


def _gather_agents(
    lines: Lines, line_of: NDArray[np.int64], agents: NDArray[np.uint32], starts: NDArray[np.int64]
) -> list[bytes]:
    """Return the packed texts of each lane's agents; nothing for a lane without any."""
    at, sizes = lines.starts["agent"], lines.lengths["agent"]
    chosen, ends = np.empty(line_of.size, np.int64), np.empty(starts.size, np.int64)
    k.choose_agents(agents, line_of, sizes, starts, np.empty(_AGENTS_SEEN, np.int64), chosen, ends)
    some = line_of[chosen[: ends[-1]]]
    cut = np.minimum(sizes[some].astype(np.int64), LONGEST_AGENT)
    texts = _copy_texts(lines, at[some].astype(np.int64), cut, int(cut.sum()), np.ones(some.size, bool))
    whole = pa.RecordBatch.from_arrays([pa.array(agents[chosen[: ends[-1]]]), texts], schema=AGENTS)
    packed = []
    for begin, end in pairwise(ends.tolist()):
        target = pa.BufferOutputStream()
        if begin < end:
            with pa.ipc.new_stream(target, AGENTS) as stream:
                stream.write_batch(whole.slice(begin, end - begin))
        packed.append(target.getvalue().to_pybytes())
    return packed


def _gather_hosts(lines: Lines, line_of: NDArray[np.int64], wanted: NDArray[np.bool_]) -> pa.Array:
    some = line_of[wanted]
    at, sizes = lines.starts["client"][some].astype(np.int64), lines.lengths["client"][some].astype(np.int64)
    sizes = np.minimum(sizes, 255)
    return _copy_texts(lines, at, sizes, int(sizes.sum()), wanted)


def _copy_texts(
    lines: Lines,
    at: NDArray[np.int64],
    sizes: NDArray[np.int64],
    total: int,
    wanted: NDArray[np.bool_],
) -> pa.Array:
    compact, out = np.empty(at.size + 1, np.int32), np.empty(total, np.uint8)
    k.copy_spans(lines.data, at, sizes, compact, out)
    whole = np.zeros(wanted.size + 1, np.int32)
    spread = np.zeros(wanted.size, np.int32)
    spread[wanted] = np.diff(compact)
    np.cumsum(spread, out=whole[1:])
    valid = pa.py_buffer(np.packbits(wanted, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), wanted.size, [valid, pa.py_buffer(whole), pa.py_buffer(out)])
