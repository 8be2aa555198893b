"""Kernels that make events of parsed lines: addresses as numbers, running maxima, lanes, texts of hits.

Rules: each position is checked against the buffer. An IPv6 address becomes the network that is its client. A
client that is not an address is named by two hashes of its text, in a range that no address has. This costs
about 40 ns per line.
"""
# mypy: disable-error-code="no-untyped-def, assignment"

from __future__ import annotations

import numpy as np

from penstock.apps.accesslog.parsing.client_addresses import cut_to_client, cut_to_net, read_address
from penstock.kernels.compilation import inlined, kernel

#: Addresses in 1::/16 belong to nobody. Here they stand for host names.
HOST_MARK = np.uint64(1 << 48)
_LOW_48 = np.uint64((1 << 48) - 1)
_PRIME = np.uint64(0x100000001B3)
_SEED_HIGH, _SEED_LOW = np.uint64(0xCBF29CE484222325), np.uint64(0x9AE16A3B2F90404F)
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


@inlined
def mix(word):
    """Spread the bits of a word over all of it."""
    word = (word ^ (word >> np.uint64(30))) * _MIX_A
    word = (word ^ (word >> np.uint64(27))) * _MIX_B
    return word ^ (word >> np.uint64(31))


@inlined
def mix_subject(high, low, kind):
    """Return the hash of a subject: its lane and its place in a table."""
    return mix(mix(high + np.uint64(kind)) + low)


@kernel
def read_clients(data, starts, lengths, highs, lows, present):
    """Read clients as 128 bits; return how many are hosts. `present`: 0 is none, 1 an address, 2 a host."""
    hosts = 0
    for i in range(starts.size):
        at, size = np.int64(starts[i]), np.int64(lengths[i])
        if size <= 0 or at < 0 or at + size > data.size:
            highs[i], lows[i] = np.uint64(0), np.uint64(0)
            present[i] = 0
            continue
        end = at + size
        fits, high, low = read_address(data, at, end)
        if fits and high >> np.uint64(48) != np.uint64(1):
            highs[i], lows[i] = cut_to_client(high, low)
            present[i] = 1
            continue
        high, low = _SEED_HIGH, _SEED_LOW
        for k in range(at, end):
            c = np.uint64(data[k])
            high = (high ^ c) * _PRIME
            low = mix(low ^ c)
        highs[i] = HOST_MARK | (mix(high) & _LOW_48)
        lows[i] = low
        present[i] = 2
        hosts += 1
    return hosts


@kernel
def follow_clock(times, lateness, effective, late):
    """Move times up to the running maximum less the lateness, and note by how much.

    Return the maximum and how many were late.
    """
    most = np.int64(-(1 << 62))
    count = 0
    for i in range(times.size):
        time = times[i]
        floor = most - lateness
        if time < floor:
            effective[i] = floor
            late[i] = floor - time
            count += 1
        else:
            effective[i] = time
            late[i] = 0
            if time > most:
                most = time
    return most, count


@kernel
def sort_into_lanes(highs, lows, kinds, groups, present, lanes, lane_of, starts, order):
    """Sort lines by lane, stably; those without a client are left out. `starts` has lanes + 1 places."""
    for i in range(highs.size):
        if present[i] == 0:
            lane_of[i] = -1
            continue
        kind = kinds[i]
        if kind == 2:
            word = mix_subject(np.uint64(0), groups[i], kind)
        elif kind == 1:
            high, low = cut_to_net(highs[i], lows[i])
            word = mix_subject(high, low, kind)
        else:
            word = mix_subject(highs[i], lows[i], kind)
        lane = np.int64((word >> np.uint64(40)) % np.uint64(lanes))
        lane_of[i] = lane
        starts[lane + 1] += 1
    for lane in range(lanes):
        starts[lane + 1] += starts[lane]
    for i in range(highs.size):
        lane = lane_of[i]
        if lane >= 0:
            order[starts[lane]] = i
            starts[lane] += 1
    for lane in range(lanes, 0, -1):
        starts[lane] = starts[lane - 1]
    starts[0] = 0


@kernel
def cut_nets(highs, lows):
    """Cut these clients to their networks, in place."""
    for i in range(highs.size):
        highs[i], lows[i] = cut_to_net(highs[i], lows[i])


@kernel
def span_requests(data_size, method_at, method_size, target_at, target_size, protocol_at, protocol_size,
                  lines, longest, out_at, out_size):  # fmt: skip
    """Find the request in each of these lines, cut to `longest` bytes; return the sum of sizes."""
    total = np.int64(0)
    for k in range(lines.size):
        i = lines[k]
        at, end = np.int64(target_at[i]), np.int64(target_at[i]) + np.int64(target_size[i])
        if target_size[i] < 0:
            at, end = np.int64(0), np.int64(0)
        if method_size[i] > 0 and target_size[i] >= 0:
            begin = np.int64(method_at[i])
            if begin + method_size[i] + 1 == at:  # one text, as in Apache's logs
                at = begin
        if protocol_size[i] > 0 and np.int64(protocol_at[i]) == end + 1:
            end = np.int64(protocol_at[i]) + np.int64(protocol_size[i])
        at = max(at, np.int64(0))
        end = min(end, np.int64(data_size), at + longest)
        out_at[k] = at
        out_size[k] = max(end - at, np.int64(0))
        total += out_size[k]
    return total


@kernel
def copy_spans(data, starts, sizes, offsets, out):
    """Copy texts one after the other; `offsets` has one place more than there are texts."""
    filled = np.int64(0)
    for k in range(starts.size):
        offsets[k] = filled
        for j in range(sizes[k]):
            out[filled + j] = data[starts[k] + j]
        filled += sizes[k]
    offsets[starts.size] = filled


@kernel
def choose_agents(agents, line_of, sizes, starts, seen, chosen, ends):
    """Choose events that name the agents of their lane, each at least once; `ends` gets the ends of lanes.

    What was seen is kept under a few bits of the hash (`seen` has 2^n places), so one may be chosen again.
    """
    filled = np.int64(0)
    ends[0] = 0
    for lane in range(starts.size - 1):
        for place in range(seen.size):
            seen[place] = -1
        for k in range(starts[lane], starts[lane + 1]):
            agent = np.int64(agents[k])
            place = agent & (seen.size - 1)
            if seen[place] != agent and sizes[line_of[k]] >= 0:
                seen[place] = agent
                chosen[filled] = k
                filled += 1
        ends[lane + 1] = filled


@kernel
def gather_hits(order, first_hit, hit_count, hit_rules, offsets, out):
    """Gather the hits of the lines in this order, as a list column."""
    filled = 0
    for k in range(order.size):
        offsets[k] = filled
        line = order[k]
        for j in range(first_hit[line], first_hit[line] + hit_count[line]):
            out[filled] = hit_rules[j]
            filled += 1
    offsets[order.size] = filled
