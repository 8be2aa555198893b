"""One lane, one batch: events in, decisions and the lane's new state out.

Rules. Events are folded in the order (effective time, server and client, partition, offset). Only those
before the watermark are folded; the others wait in the state. The watermark follows from the clocks before
the batch and the clocks in it, so every lane computes the same one. All results are a function of the log:
they do not depend on how it is cut into batches, in which order its partitions arrive, or where it is stopped
and resumed.

A line that comes when the fold is past its time is moved up and counted as late. If it was moved up far, as
in a backlog that comes at once, its time means nothing: the points of its attacks count, but rules that count
lines ignore it. The number of waiting events is limited. Beyond the limit the oldest are folded early, and
lines that are older than those are then late.

    result = fold_lane(state, events, clocks, settings, OrdersInForce())
    result.decisions, result.state, result.clocks
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.apps.accesslog.defence import ban_kernel, behaviour_fold_kernel, subject_table_kernel
from penstock.apps.accesslog.defence import behaviour_fold_arrays as s
from penstock.apps.accesslog.defence.behaviour_program import RuleProgram
from penstock.apps.accesslog.defence.defence_settings import (
    DECISIONS,
    DefenceSettings,
    OrdersInForce,
    identify,
    make_limits,
)
from penstock.apps.accesslog.defence.evidence_lines import (
    AGENTS_KEPT,
    HITS_KEPT,
    MOST_EVIDENCE,
    ShownLine,
    Witnesses,
    name_agents,
    pick_rows,
    select_agents,
    show_line,
)
from penstock.apps.accesslog.defence.lane_state import QUEUE, LaneState, _hits_of, grow
from penstock.apps.accesslog.events.line_events import EventsHeader, read_agents
from penstock.apps.accesslog.events.log_clocks import NEVER, Clocks, advance
from penstock.apps.accesslog.events.subjects import CLIENT, KINDS, is_host, name_subject

_OUT_ROWS = 4096
_AGENT = 2  # the code of a rule that counts distinct agents in `RuleProgram.distinct`
_KERNEL_COLUMNS = ("high", "low", "kind", "group", "time", "late", "path", "agent", "answer")


@dataclass(frozen=True, slots=True)
class FoldResult:
    """The outcome of a batch for one lane. `clocks` are the same for every lane of a batch."""

    state: LaneState
    decisions: pa.Table
    counters: dict[str, int]
    clocks: Clocks


def fold_lane(
    state: LaneState,
    events: Sequence[pa.RecordBatch],
    clocks: Clocks,
    settings: DefenceSettings,
    orders: OrdersInForce | None = None,
    *,
    finished: Clocks | None = None,
) -> FoldResult:
    """Fold the events that are ready and return the result.

    At the end of a replay, `finished` replaces the clocks after the batch.
    """
    queue, after, moved = _join(state, events, clocks, settings)
    after = finished or after
    limits = make_limits(settings, orders or OrdersInForce())
    if limits.grace_times.size:
        ban_kernel.lift_bans(state.clients, limits)
    times = _numbers(queue, "time")
    released = _bound(times, after.watermark_us, settings.pending_per_lane)
    chosen = times < released
    ready = np.flatnonzero(chosen)
    forced = int((times[ready] >= after.watermark_us).sum()) if released > after.watermark_us else 0
    # If the ready events come first, nothing needs to be copied.
    if not ready.size or ready[-1] == ready.size - 1:
        state.pending = queue.slice(ready.size)
    else:
        state.pending = queue.filter(pa.array(~chosen))
    state.released_us = max(state.released_us, released if times.size else after.watermark_us)
    decisions: list[pa.Table] = []
    late = 0
    if ready.size:
        kinds = _numbers(queue, "kind")[ready]
        late = int(np.count_nonzero(_numbers(queue, "late")[ready[kinds == CLIENT]]))
        for is_group in (False, True):
            mine = ready[(kinds > CLIENT) if is_group else (kinds == CLIENT)] if kinds.any() else ready
            if mine.size and (not is_group or kinds.any()):
                decisions.append(_fold_part(state, queue, mine, settings, limits, is_group))
    state.agents = select_agents(state.agents, _numbers(state.pending, "agent"))
    waited_for = set(pc.unique(state.pending.column("server")).to_pylist())
    state.servers = {key: name for key, name in state.servers.items() if key in waited_for}
    evicted = int(state.clients.heads[s.EVICTED] + state.groups.heads[s.EVICTED])
    for table in (state.clients, state.groups):
        table.heads[s.EVICTED] = 0
        if state.released_us > NEVER:
            subject_table_kernel.sweep(table, state.released_us)
    counters = {
        "folded": int(ready.size),
        "late": late,
        "moved": moved,
        "forced": forced,
        "pending": state.pending.num_rows,
        "subjects": state.subjects,
        "evicted": evicted,
    }
    made = pa.concat_tables(decisions) if decisions else DECISIONS.empty_table()
    return FoldResult(state, made, counters, after)


def _join(
    state: LaneState, events: Sequence[pa.RecordBatch], clocks: Clocks, settings: DefenceSettings
) -> tuple[pa.Table, Clocks, int]:
    """Return the queue, the clocks after the batch, and how many events were moved up.

    The queue has the events that waited and those that came, by partition and offset, with effective times.
    """
    batches = sorted(
        ((EventsHeader.read(each.schema), each) for each in events),
        key=lambda one: (one[0].partition, one[0].first_offset),
    )
    maxima = {number: clock.max_us for number, clock in clocks.partitions.items()}
    parts, names, moved = [state.pending], [state.agents], 0
    for header, batch in batches:
        before = maxima.get(header.partition, NEVER)
        maxima[header.partition] = max(before, header.max_us)
        state.servers |= header.servers
        if batch.num_rows == 0:
            continue
        names.append(read_agents(batch.schema))
        # An event behind the fold gets the last moment that is folded already, so it is folded at once.
        floor = max(before - settings.lateness_us, state.released_us - 1)
        times = batch.column("time").to_numpy()
        if times.min() < floor:
            late = batch.column("late").to_numpy() + np.maximum(floor - times, 0)
            moved += int((times < floor).sum())
            batch = batch.set_column(4, "time", pa.array(np.maximum(times, floor)))
            batch = batch.set_column(5, "late", pa.array(late))
        if batch.column("host").null_count < batch.num_rows:
            _remember_hosts(state, batch)
        numbers = pa.array(np.full(batch.num_rows, header.partition, np.int32))
        parts.append(pa.Table.from_arrays([*batch.columns, numbers], schema=QUEUE))
    state.agents = pa.concat_tables(names)
    came = {header.partition: header.max_us for header, _ in batches}
    for header, _ in batches:
        came[header.partition] = max(came[header.partition], header.max_us)
    queue = pa.concat_tables(parts)
    if len(parts) > 1:
        partitions = _numbers(queue, "partition")
        if partitions.size and partitions.min() != partitions.max():
            queue = queue.take(pa.array(np.argsort(partitions, kind="stable")))
    return queue.combine_chunks(), advance(clocks, came, lateness_us=settings.lateness_us), moved


def _bound(times: NDArray[np.int64], watermark: int, most: int) -> int:
    """Return the time up to which to fold: the watermark, or later if too many events would wait."""
    waiting = times[times >= watermark]
    if waiting.size <= most:
        return watermark
    # The last event that must be folded. All others of the same time are folded with it.
    last = waiting.size - most - 1
    return int(np.partition(waiting, last)[last]) + 1


def _remember_hosts(state: LaneState, batch: pa.RecordBatch) -> None:
    named = batch.filter(batch.column("host").is_valid())
    keys = np.stack([named.column(name).to_numpy() for name in ("high", "low")], axis=1)
    _, firsts = np.unique(keys, axis=0, return_index=True)
    texts = named.column("host").take(pa.array(firsts)).to_pylist()
    for (high, low), text in zip(keys[firsts].tolist(), texts, strict=True):
        state.hosts.setdefault((high, low), text.decode("utf-8", "replace"))


def _numbers(rows: pa.Table, name: str) -> NDArray[Any]:
    array: NDArray[Any] = rows.column(name).to_numpy()
    return array


def _fold_part(
    state: LaneState,
    queue: pa.Table,
    mine: NDArray[np.int64],
    settings: DefenceSettings,
    limits: s.FoldLimits,
    is_group: bool,
) -> pa.Table:
    """Fold these events of the queue: those of clients, or those of networks and fingerprints."""
    order = _sort_groups(queue, mine) if is_group else _sort_clients(queue, mine)
    starts, hits = _hits_of(queue)
    counts = (starts[1:] - starts[:-1])[order]
    hit_starts = np.zeros(order.size + 1, np.int64)
    np.cumsum(counts, out=hit_starts[1:])
    if hit_starts[-1]:
        hits = hits[np.repeat(starts[order] - hit_starts[:-1], counts) + np.arange(hit_starts[-1])]
    columns = {name: _numbers(queue, name)[order] for name in _KERNEL_COLUMNS}
    noted = np.zeros(order.size, np.int8)
    events = s.Events(**columns, hit_starts=hit_starts, hit_rules=hits, noted=noted)
    table = state.groups if is_group else state.clients
    rules = _bundle(state.program)
    behaviours = len(state.program.ids)
    made, scores, at = [], [], 0
    out, score = np.empty((_OUT_ROWS, s.OUT_WIDTH), np.int64), np.empty(_OUT_ROWS, np.float64)
    while True:
        at = behaviour_fold_kernel.fold_events(events, at, table, rules, limits, out, score)
        used = int(table.heads[s.OUT_USED])
        if used:
            made.append(out[:used].copy())
            scores.append(score[:used].copy())
            table.heads[s.OUT_USED] = 0
        if at == order.size:
            break
        table = grow(table, behaviours)
    if is_group:
        state.groups = table
    else:
        state.clients = table
    found = _Found(state, queue, order, np.flatnonzero(counts), np.flatnonzero(noted), is_group)
    return found.decide(settings, made, scores)


def _bundle(program: RuleProgram) -> s.Rules:
    any_client, any_net, any_print = program.any_lists
    return s.Rules(
        program.points, program.enforced, program.class_bit, program.rule_of, program.limit,
        program.half_life, program.window, program.memory, program.distinct, program.leaves_shared,
        program.dense_list, any_client, any_net, any_print, program.count_starts, program.count_lists,
    )  # fmt: skip


def _sort_clients(queue: pa.Table, mine: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order by time and server; the queue is already in the order of partitions and offsets.

    A client's lines of one server are all in one partition, whether the key of the records is the server or
    the client (for IPv6 its /64, as the shipper cuts it). Lines arrive nearly in the order of their times,
    which makes this sort fast.
    """
    servers = _numbers(queue, "server")
    if servers.min() != servers.max():
        mine = mine[np.argsort(servers[mine], kind="stable")]
    times = _numbers(queue, "time")[mine]
    return mine[np.argsort(times, kind="stable")]


def _sort_groups(queue: pa.Table, mine: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order by time, server and client, which does not depend on the records' key."""
    high, low, times, servers = (_numbers(queue, name)[mine] for name in ("high", "low", "time", "server"))
    tie = low * np.uint64(0x9E3779B97F4A7C15) + high
    tie ^= servers.astype(np.uint64) << np.uint64(32)
    return mine[np.lexsort((tie, times))]


class _Found:
    """What the kernel has found in some events: lines that are remembered as evidence, and decisions."""

    def __init__(
        self,
        state: LaneState,
        queue: pa.Table,
        order: NDArray[np.int64],
        hits: NDArray[np.int64],
        noted: NDArray[np.int64],
        is_group: bool,
    ) -> None:
        self._state, self._queue, self._order = state, queue, order
        texts = queue.column("text").combine_chunks().take(pa.array(order[hits]))
        rows = pick_rows(queue, order[hits], texts, is_group=is_group)
        before = state.group_evidence if is_group else state.evidence
        self._hits = Witnesses(before, HITS_KEPT, hits, rows)
        self._switches = self._hits
        if is_group:
            state.group_evidence = self._hits.kept
        else:
            state.evidence = self._hits.kept
            rows = pick_rows(queue, order[noted], self._name(order[noted]), is_group=False)
            self._switches = Witnesses(state.agent_evidence, AGENTS_KEPT, noted, rows)
            state.agent_evidence = self._switches.kept

    def _name(self, chosen: NDArray[np.int64]) -> pa.Array:
        """Return the agents of these events of the queue."""
        return name_agents(self._state.agents, _numbers(self._queue, "agent")[chosen])

    def decide(
        self, settings: DefenceSettings, made: list[NDArray[np.int64]], scores: list[NDArray[np.float64]]
    ) -> pa.Table:
        """Return the decisions as rows, each with the lines that caused it."""
        if not made:
            return DECISIONS.empty_table()
        out, score = np.concatenate(made), np.concatenate(scores)
        deciding = self._order[out[:, s.OUT_EVENT]]
        shown_columns = ["time", "partition", "offset", "server", "text"]
        rows = self._queue.select(shown_columns).take(pa.array(deciding))
        triggers = [rows.column(name).to_pylist() for name in shown_columns]
        triggers.append(self._name(deciding).to_pylist())
        words = out.view(np.uint64)
        state, rules = self._state, settings.ruleset.rules
        program = state.program
        switching = np.isin(out[:, s.OUT_RULE], program.rule_of[program.distinct == _AGENT])
        switching &= out[:, s.OUT_KIND] == CLIENT
        shown = self._gather_evidence(out, switching, list(zip(triggers[1], triggers[2], strict=True)))
        columns: dict[str, list[Any]] = {name: [] for name in DECISIONS.names}
        for n, (time, partition, offset, server, text, agent) in enumerate(zip(*triggers, strict=True)):
            kind = int(out[n, s.OUT_KIND])
            high, low = int(words[n, s.OUT_HIGH]), int(words[n, s.OUT_LOW])
            subject = name_subject(kind, high, low, state.hosts)
            named = (int(words[n, s.OUT_CLIENT_HIGH]), int(words[n, s.OUT_CLIENT_LOW]))
            client = subject if kind == CLIENT else name_subject(CLIENT, *named, state.hosts)
            rule = rules[int(out[n, s.OUT_RULE])]
            action = s.ACTIONS[int(out[n, s.OUT_ACTION])]
            ban_us = int(out[n, s.OUT_BAN])
            agent = agent or b"-" if switching[n] else agent
            evidence = [*shown[n], show_line(partition, offset, time, text, agent)]
            about = (settings.stream, subject, client, rule.id, action)
            for name, value in (
                ("decision_id", identify(*about, partition, offset)),
                ("subject", subject), ("kind", KINDS[kind]), ("client", client), ("decided_at", time),
                ("rule", rule.id), ("class", rule.attack_class), ("action", action),
                ("score", round(float(score[n]), 3)), ("ban_seconds", ban_us // 1_000_000),
                ("expires_at", time + ban_us), ("level", int(out[n, s.OUT_LEVEL])),
                ("server", state.servers.get(server, "")), ("partition", partition), ("offset", offset),
                ("request_index", int(out[n, s.OUT_REQUESTS])),
                ("evidence", json.dumps(evidence[-MOST_EVIDENCE:])),
            ):  # fmt: skip
                columns[name].append(value)
        return pa.table(columns, schema=DECISIONS)

    def _gather_evidence(
        self, out: NDArray[np.int64], is_switch: NDArray[np.bool_], lines: list[tuple[int, int]]
    ) -> list[list[ShownLine]]:
        """Return the evidence of each decision, without the line that decided.

        It is the subject's new agents if the rule counts those, else the lines that rules have hit.
        """
        shown: list[list[ShownLine]] = [[] for _ in range(len(out))]
        words = out.view(np.uint64)
        for which, witnesses in ((True, self._switches), (False, self._hits)):
            chosen = np.flatnonzero(is_switch == which)
            found = witnesses.find(
                out[chosen, s.OUT_EVENT],
                out[chosen, s.OUT_KIND],
                words[chosen, s.OUT_HIGH],
                words[chosen, s.OUT_LOW],
            )
            for n, rows in zip(chosen.tolist(), found, strict=True):
                shown[n] = [
                    show_line(partition, offset, time, *((None, text or b"-") if which else (text, None)))
                    for partition, offset, time, text in rows
                    if (partition, offset) != lines[n]
                ]
        return shown


__all__ = ["FoldResult", "fold_lane", "is_host"]
