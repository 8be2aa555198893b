"""The state of a lane: its subjects, waiting events and evidence, and how it is packed and unpacked.

Rules. A lane is packed into pieces of at most 1 MiB, so that no row of a database becomes huge. Each piece is
an Arrow stream that names its version and its content, so that a release can recognise the state of another
one. Rules are stored by id: a rule that was removed is forgotten, and one that has moved is found. Expired
subjects are swept before packing. This changes no result, because they would start anew at their next event.

>>> state = LaneState.begin(DefenceSettings.default(subjects_per_lane=64))
>>> len(state.pack())
1
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.defence import subject_table_kernel as t
from penstock.apps.accesslog.defence.behaviour_program import RuleProgram, compile_rules
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.defence.evidence_lines import EVIDENCE
from penstock.apps.accesslog.events.line_events import AGENTS, EVENTS
from penstock.apps.accesslog.events.log_clocks import NEVER
from penstock.core.errors import DecodeError

VERSION = 3
LARGEST_CHUNK = 1 << 20
QUEUE = EVENTS.append(pa.field("partition", pa.int32()))
_STORED = {
    "high": s.HIGH, "low": s.LOW, "kind": s.KIND, "last": s.LAST, "expires": s.EXPIRES,
    "requests": s.REQUESTS, "ban_from": s.BAN_FROM, "ban_until": s.BAN_UNTIL, "level": s.LEVEL,
    "quiet_until": s.QUIET_UNTIL, "agent": s.AGENT, "scored_at": s.SCORED_AT,
    "classes": s.CLASSES, "vouched": s.VOUCHED,
}  # fmt: skip
#: Parts with texts, which are stored as they are.
_TEXTS = ("evidence", "group_evidence", "agent_evidence", "agents")
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def make_table(subjects: int, paths: int, dense: int, rows: int = 64) -> s.SubjectTable:
    """Return an empty table for this many subjects; its pools grow with their content."""
    places = max(-(-subjects // s.WAYS), 1) * s.WAYS
    heads = np.zeros(s.HEADS, np.int64)
    heads[[s.ROWS_FREE, s.COUNTERS_FREE, s.MEMBERS_FREE]] = -1
    return s.SubjectTable(
        tags=np.zeros(places, np.uint32),
        slots=np.full(places, -1, np.int32),
        rows=np.zeros((rows, s.ROW_WIDTH), np.int64),
        marks=np.zeros((rows, s.DENSE + dense), np.float64),
        counters=np.zeros((rows, s.COUNTER_WIDTH), np.int64),
        levels=np.zeros((rows, 2), np.float64),
        filters=np.zeros((rows, s.FILTER_WORDS), np.uint64),
        members=np.zeros((rows, s.MEMBER_WIDTH), np.int64),
        heads=heads,
        paths=np.zeros((max(-(-paths // s.PATH_WAYS), 1) * s.PATH_WAYS, s.PATH_WIDTH), np.int64),
    )


def grow(table: s.SubjectTable, behaviours: int) -> s.SubjectTable:
    """Return the table with more room in the pools that are nearly full."""
    heads = table.heads
    changes: dict[str, Any] = {}
    if heads[s.ROWS_USED] + 1 >= table.rows.shape[0]:
        most = min(2 * table.rows.shape[0], table.slots.size + 1)
        changes |= {name: _widen(getattr(table, name), most) for name in ("rows", "marks")}
    if heads[s.COUNTERS_USED] + behaviours + 1 >= table.counters.shape[0]:
        most = 2 * table.counters.shape[0] + behaviours
        changes |= {name: _widen(getattr(table, name), most) for name in ("counters", "levels", "filters")}
    if heads[s.MEMBERS_USED] + 1 >= table.members.shape[0]:
        changes["members"] = _widen(table.members, 2 * table.members.shape[0])
    return table._replace(**changes)


def _widen(array: NDArray[Any], rows: int) -> NDArray[Any]:
    wider = np.zeros((max(rows, array.shape[0]), array.shape[1]), array.dtype)
    wider[: array.shape[0]] = array
    return wider


@dataclass
class LaneState:
    """Everything that a lane remembers between two batches."""

    program: RuleProgram
    clients: s.SubjectTable
    groups: s.SubjectTable
    pending: pa.Table
    evidence: pa.Table  # of clients
    group_evidence: pa.Table
    agent_evidence: pa.Table  # of clients, with agents as texts
    agents: pa.Table  # the texts of the waiting events' agents
    released_us: int = NEVER  # all events before this time have been folded
    hosts: dict[tuple[int, int], str] = field(default_factory=dict)
    servers: dict[int, str] = field(default_factory=dict)

    @classmethod
    def begin(cls, settings: DefenceSettings) -> LaneState:
        program = compile_rules(settings.ruleset)
        dense = program.dense_count
        return cls(
            program,
            make_table(settings.subjects_per_lane, settings.paths_per_lane, dense),
            make_table(settings.groups_per_lane, 1, dense),
            QUEUE.empty_table(),
            EVIDENCE.empty_table(),
            EVIDENCE.empty_table(),
            EVIDENCE.empty_table(),
            AGENTS.empty_table(),
        )

    @property
    def subjects(self) -> int:
        return int(self.clients.heads[s.LIVE] + self.groups.heads[s.LIVE])

    def pack(self) -> list[bytes]:
        """Return the state in pieces of at most 1 MiB."""
        self._forget_hosts()
        rules = self.program.ruleset.rules
        used = sorted({int(rule) for rule in np.unique(_hits_of(self.pending)[1])})
        head = {
            "released_us": self.released_us,
            "behaviours": list(self.program.ids),
            "dense": [self.program.ids[b] for b in self.program.dense_list],
            "rules": {str(number): rules[number].id for number in used},
            "servers": {str(key): name for key, name in self.servers.items()},
            "hosts": [[high, low, text] for (high, low), text in sorted(self.hosts.items())],
        }
        packed = json.dumps(head).encode()
        chunks = _pack_part("head", pa.table({"json": pa.array(_cut(packed), pa.binary())}))
        for name, table in (("clients", self.clients), ("groups", self.groups)):
            rows, counters, members = _list_table(table)
            chunks += _pack_part(f"{name}.rows", rows)
            chunks += _pack_part(f"{name}.counters", counters)
            chunks += _pack_part(f"{name}.members", members)
            chunks += _pack_part(f"{name}.paths", _list_paths(table))
        chunks += _pack_part("pending", self.pending)
        for name in _TEXTS:
            chunks += _pack_part(name, getattr(self, name))
        return chunks

    @classmethod
    def unpack(cls, chunks: Iterable[bytes | pa.Buffer], settings: DefenceSettings) -> LaneState:
        """Return the state that `pack` made; without pieces, an empty state."""
        parts = _read_parts(chunks)
        state = cls.begin(settings)
        if "head" not in parts:
            return state
        head = json.loads(b"".join(parts["head"].column("json").to_pylist()))
        program = state.program
        place = {identity: b for b, identity in enumerate(program.ids)}
        moved = np.array([place.get(identity, -1) for identity in head["behaviours"]] or [-1], np.int64)
        dense = [
            int(program.dense[place[identity]]) if identity in place else -1 for identity in head["dense"]
        ]
        state.released_us = head["released_us"]
        state.servers = {int(key): name for key, name in head["servers"].items()}
        state.hosts = {(high, low): text for high, low, text in head["hosts"]}
        state.clients = _fill_table(state.clients, parts, "clients", moved, dense, program.dense_count)
        state.groups = _fill_table(state.groups, parts, "groups", moved, dense, program.dense_count)
        if "pending" in parts:
            state.pending = _renumber(parts["pending"].cast(QUEUE), head["rules"], settings)
        for name in _TEXTS:
            setattr(state, name, parts.get(name, getattr(state, name)))
        return state

    def _forget_hosts(self) -> None:
        if not self.hosts:
            return
        known: set[tuple[int, int]] = set()
        for array, high, low, used in (
            (self.clients.rows, s.HIGH, s.LOW, s.ROWS_USED),
            (self.groups.members, s.MEMBER_HIGH, s.MEMBER_LOW, s.MEMBERS_USED),
        ):
            heads = self.clients.heads if used == s.ROWS_USED else self.groups.heads
            words = array[: heads[used], [high, low]].view(np.uint64)
            known |= set(map(tuple, words.tolist()))
        waiting = zip(*(self.pending.column(name).to_pylist() for name in ("high", "low")), strict=True)
        known |= set(waiting)
        self.hosts = {key: text for key, text in self.hosts.items() if key in known}


def _cut(data: bytes) -> list[bytes]:
    step = LARGEST_CHUNK // 4
    return [data[at : at + step] for at in range(0, len(data), step)]


def _pack_part(part: str, rows: pa.Table) -> list[bytes]:
    """Return one part as pieces that are small enough; none if it is empty."""
    if rows.num_rows == 0:
        return []
    schema = rows.schema.with_metadata({"penstock.lane": json.dumps({"version": VERSION, "part": part})})
    rows = pa.table(rows.columns, schema=schema)
    target = pa.BufferOutputStream()
    with pa.ipc.new_stream(target, schema, options=_OPTIONS) as stream:
        stream.write_table(rows)
    whole = target.getvalue()
    if whole.size <= LARGEST_CHUNK or rows.num_rows == 1:
        return [whole.to_pybytes()]
    half = rows.num_rows // 2
    return _pack_part(part, rows.slice(0, half)) + _pack_part(part, rows.slice(half))


def _read_parts(chunks: Iterable[bytes | pa.Buffer]) -> dict[str, pa.Table]:
    pieces: dict[str, list[pa.Table]] = {}
    for chunk in chunks:
        rows = pa.ipc.open_stream(chunk).read_all()
        told = json.loads((rows.schema.metadata or {}).get(b"penstock.lane", b"{}"))
        if told.get("version") != VERSION:
            raise DecodeError(
                "LANE_VERSION",
                f"A piece of stored state has version {told.get('version')!r}; this release reads {VERSION}.",
                hint="Run the release that wrote it, or a newer one.",
            )
        pieces.setdefault(told["part"], []).append(rows.replace_schema_metadata(None))
    return {part: pa.concat_tables(some).combine_chunks() for part, some in pieces.items()}


def _list_table(table: s.SubjectTable) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the live rows of a table, and the entries that belong to them, in the order of their chains."""
    numbers = table.slots[table.slots >= 0].astype(np.int64)
    rows, marks = table.rows[numbers], table.marks[numbers]
    columns = {name: rows[:, column] for name, column in _STORED.items()}
    columns |= {"score": marks[:, s.SCORE], "shadow": marks[:, s.SHADOW]}
    columns |= {f"dense{n}": marks[:, s.DENSE + n] for n in range(marks.shape[1] - s.DENSE)}
    heads = table.heads
    order, owner = np.empty((2, int(heads[s.COUNTERS_USED]) + 1), np.int64)
    member_order, member_owner = np.empty((2, int(heads[s.MEMBERS_USED]) + 1), np.int64)
    count, members = t.list_chains(table, numbers, order, owner, member_order, member_owner)
    entries, levels = table.counters[order[:count]], table.levels[order[:count]]
    filters = table.filters[order[:count]]
    counters = {
        "owner": owner[:count], "rule": entries[:, s.BEHAVIOUR], "counted_at": entries[:, s.COUNTED_AT],
        "hot_until": entries[:, s.HOT_UNTIL], "window": entries[:, s.WINDOW_INDEX],
        "level": levels[:, s.NOW_LEVEL], "previous": levels[:, s.PREVIOUS],
    }  # fmt: skip
    counters |= {f"filter{n}": filters[:, n] for n in range(s.FILTER_WORDS)}
    some = table.members[member_order[:members]]
    named = {
        "owner": member_owner[:members], "high": some[:, s.MEMBER_HIGH], "low": some[:, s.MEMBER_LOW],
        "last": some[:, s.MEMBER_LAST], "mask": some[:, s.MEMBER_MASK], "until": some[:, s.MEMBER_UNTIL],
        "count": some[:, s.MEMBER_COUNT],
    }  # fmt: skip
    return _as_table(columns), _as_table(counters), _as_table(named)


def _as_table(columns: dict[str, NDArray[Any]]) -> pa.Table:
    return pa.table({name: pa.array(np.ascontiguousarray(values)) for name, values in columns.items()})


def _list_paths(table: s.SubjectTable) -> pa.Table:
    places = np.flatnonzero(table.paths[:, s.PATH_FIRST])
    some = table.paths[places]
    columns = {
        "place": places,
        "key": some[:, 0],
        "first": some[:, 1],
        "second": some[:, 2],
        "last": some[:, 3],
    }
    return _as_table(columns)


def _fill_table(
    empty: s.SubjectTable,
    parts: dict[str, pa.Table],
    name: str,
    moved: NDArray[np.int64],
    dense: Sequence[int],
    dense_count: int,
) -> s.SubjectTable:
    rows = parts.get(f"{name}.rows")
    table = empty
    if rows is not None:
        counters, members = parts.get(f"{name}.counters"), parts.get(f"{name}.members")
        kept = _select_known(counters, moved)
        entries = 0 if kept is None else kept.num_rows
        sizes = max(rows.num_rows, entries, 0 if members is None else members.num_rows)
        table = make_table(empty.slots.size, empty.paths.shape[0], dense_count, sizes + 64)
        count = rows.num_rows
        for column, at in _STORED.items():
            table.rows[:count, at] = rows.column(column).to_numpy()
        table.rows[:count, [s.CHAIN, s.MEMBERS]] = -1
        table.marks[:count, s.SCORE] = rows.column("score").to_numpy()
        table.marks[:count, s.SHADOW] = rows.column("shadow").to_numpy()
        for n, to in enumerate(dense):
            if to >= 0:
                table.marks[:count, s.DENSE + to] = rows.column(f"dense{n}").to_numpy()
        table.heads[[s.ROWS_USED, s.LIVE]] = count
        owners, member_owners = np.zeros(0, np.int64), np.zeros(0, np.int64)
        if kept is not None:
            owners = kept.column("owner").to_numpy()
            _fill_counters(table, kept, moved)
        if members is not None:
            member_owners = members.column("owner").to_numpy()
            _fill_members(table, members, moved)
        t.link_chains(table, owners, member_owners)
        if not t.place_rows(table, count):
            raise DecodeError(
                "LANE_TOO_SMALL",
                f"The stored lane has {count:,} subjects, more than fit into {table.slots.size:,} places.",
                hint="Set subjects_per_lane back to what it was.",
            )
    paths = parts.get(f"{name}.paths")
    if paths is not None:
        places = paths.column("place").to_numpy()
        if places.size and places.max() < table.paths.shape[0]:
            for at, key in enumerate(("key", "first", "second", "last")):
                table.paths[places, at] = paths.column(key).to_numpy()
    return table


def _select_known(counters: pa.Table | None, moved: NDArray[np.int64]) -> pa.Table | None:
    if counters is None:
        return None
    known = moved[counters.column("rule").to_numpy()] >= 0
    return counters if known.all() else counters.filter(pa.array(known))


def _fill_counters(table: s.SubjectTable, kept: pa.Table, moved: NDArray[np.int64]) -> None:
    count = kept.num_rows
    table.counters[:count, s.BEHAVIOUR] = moved[kept.column("rule").to_numpy()]
    for name, at in (("counted_at", s.COUNTED_AT), ("hot_until", s.HOT_UNTIL), ("window", s.WINDOW_INDEX)):
        table.counters[:count, at] = kept.column(name).to_numpy()
    table.levels[:count, s.NOW_LEVEL] = kept.column("level").to_numpy()
    table.levels[:count, s.PREVIOUS] = kept.column("previous").to_numpy()
    for n in range(s.FILTER_WORDS):
        table.filters[:count, n] = kept.column(f"filter{n}").to_numpy()
    table.heads[s.COUNTERS_USED] = count


def _fill_members(table: s.SubjectTable, members: pa.Table, moved: NDArray[np.int64]) -> None:
    count = members.num_rows
    for name, at in (
        ("high", s.MEMBER_HIGH), ("low", s.MEMBER_LOW), ("last", s.MEMBER_LAST),
        ("until", s.MEMBER_UNTIL), ("count", s.MEMBER_COUNT),
    ):  # fmt: skip
        table.members[:count, at] = members.column(name).to_numpy()
    mask = members.column("mask").to_numpy()
    for old, new in enumerate(moved.tolist()):
        if new >= 0:
            table.members[:count, s.MEMBER_MASK] |= ((mask >> old) & 1) << new
    table.heads[s.MEMBERS_USED] = count


def _hits_of(queue: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
    """Return where the hits of each event begin, and all hits."""
    column = queue.column("hits").combine_chunks()
    if len(column) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int16)
    starts = column.offsets.to_numpy().astype(np.int64)
    return starts - starts[0], column.flatten().to_numpy().astype(np.int16)


def _renumber(pending: pa.Table, names: dict[str, str], settings: DefenceSettings) -> pa.Table:
    """Return waiting events with the current numbers of their rules, without hits of removed rules."""
    now = {rule.id: rule.number for rule in settings.ruleset.rules}
    change = {int(number): now.get(identity, -1) for number, identity in names.items()}
    if all(number == to for number, to in change.items()):
        return pending
    lists = [
        [change[each] for each in some if change[each] >= 0] for some in pending.column("hits").to_pylist()
    ]
    place = pending.schema.get_field_index("hits")
    return pending.set_column(place, QUEUE.field("hits"), pa.array(lists, QUEUE.field("hits").type))
