"""A line twice as long takes at most a little more than twice the steps, whatever it contains.

The kernels run as plain Python in a separate process, and every executed line is counted. No other load on
the machine changes that number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[5]
MOST = 2.3
SIZES = (1500, 3000)

COUNT_STEPS = r"""
import json, sys
import numpy as np, pyarrow as pa
from penstock.apps.accesslog.parsing.line_parser import make_parser
np.seterr(over="ignore")
T = b"10/Oct/2000:13:55:36 -0700"
HEAD = b'192.0.2.7 - - [' + T + b'] "'
INNER = HEAD.replace(b"192.0.2.7", b"10.0.0.1")
TAIL = b' HTTP/1.1" 200 1 "-" "x"'
def fill(text, size):
    return (text * (size // len(text) + 1))[:size]
SHAPES = {
    "a plain target": lambda n: HEAD + b"GET /" + fill(b"a", n) + TAIL,
    "quotes in the request": lambda n: HEAD + b"GET /" + fill(b'"', n) + TAIL,
    "quotes and blanks": lambda n: HEAD + b"GET /" + fill(b'" ', n) + TAIL,
    "quotes and nearly a status": lambda n: HEAD + b"GET /" + fill(b'" 20x', n) + TAIL,
    "a request that never ends": lambda n: HEAD + fill(b'" 20x \\"', n),
    "backslashes": lambda n: HEAD + b"GET /" + fill(b"\\", n) + TAIL,
    "backslashes and quotes, no end": lambda n: HEAD + fill(b'\\\\"', n),
    "brackets in the user": lambda n: b"192.0.2.7 - " + fill(b" [", n)
        + b" [" + T + b'] "GET / HTTP/1.1" 200 1',
    "times in the user": lambda n: b"192.0.2.7 - " + fill(b" [" + T, n) + b"x",
    "fractions in the user": lambda n: b"192.0.2.7 - " + fill(b" [1700000000.1111111111111", n),
    "blanks": lambda n: fill(b" ", n),
    "quotes": lambda n: fill(b'"', n),
    "an agent": lambda n: HEAD + b'GET / HTTP/1.1" 200 1 "-" "' + fill(b'x" y', n) + b'"',
    "a tail of numbers": lambda n: HEAD + b'GET / HTTP/1.1" 200 1 "-" "-" ' + fill(b"1.1.1 ", n),
    "a tail of one number": lambda n: HEAD + b'GET / HTTP/1.1" 200 1 "-" "-" ' + fill(b"1", n),
    "a tail of quotes": lambda n: HEAD + b'GET / HTTP/1.1" 200 1 "-" "-" "-" ' + fill(b'"', n),
    "a size of digits": lambda n: HEAD + b'GET / HTTP/1.1" 200 ' + fill(b"1", n),
    "a list of proxies": lambda n: INNER + b'GET / HTTP/1.1" 200 1 "-" "-" "'
        + fill(b"10.0.0.1, ", n) + b'10.0.0.2"',
    "a list of commas": lambda n: INNER + b'GET / HTTP/1.1" 200 1 "-" "-" "'
        + fill(b" ,", n) + b'"',
    "a list in front": lambda n: fill(b"10.0.0.1, ", n) + b"x - - [" + T + b'] "GET / HTTP/1.1" 200 1',
    "syslog data": lambda n: b"<1>1 2003-10-11T22:14:15Z h a 1 - " + fill(b"[a]", n) + b" x",
    "words": lambda n: fill(b"a:1 ", n),
    "objects": lambda n: b'{"log":' * (n // 8) + b"1" + b"}" * (n // 8),
    "lists": lambda n: b'{"a":[' + fill(b"1,[2],", n) + b"3]}",
    "keys": lambda n: b'{"time":"x",' + fill(b'"time":"y",', n // 11 * 11) + b'"ts":1700000000,"ip":"::1"}',
    "unknown keys": lambda n: b"{" + fill(b'"time_of_day":1,', n // 16 * 16) + b'"ts":1700000000,"ip":"::1"}',
    "a long key": lambda n: b'{"' + fill(b"-", n) + b'":1}',
    "escapes in JSON": lambda n: b'{"request":"' + fill(b'\\"', n) + b'"}',
    "forwarding headers": lambda n: b'{"ts":1700000000,"ip":"10.0.0.1","xff":['
        + fill(b'"10.0.0.1",', n // 11 * 11) + b'"10.0.0.2"]}',
}
parser = make_parser("auto", ["10.0.0.0/8"])
steps = 0
def count(frame, event, argument):
    global steps
    if "penstock" not in frame.f_code.co_filename:
        return None
    steps += 1
    return count
def measure(line):
    global steps
    values = pa.array([line])
    steps = 0
    sys.settrace(count)
    parser.parse(values)
    sys.settrace(None)
    return steps
measure(b"x")
sizes = json.loads(sys.argv[1])
counted = {name: [(len(make(n)), measure(make(n))) for n in sizes] for name, make in SHAPES.items()}
print(json.dumps(counted))
"""


def test_a_line_twice_as_long_takes_at_most_a_little_more_than_twice_the_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COUNT_STEPS, json.dumps(SIZES)],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "NUMBA_BOUNDSCHECK": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    counted: dict[str, list[tuple[int, int]]] = json.loads(done.stdout)
    assert len(counted) > 25
    for name, ((_, steps), (length, more)) in counted.items():
        assert more <= MOST * steps, (name, steps, more)
        assert more <= 60 * length, (name, "steps for each byte", more / length)
    assert sum(more for _, (_, more) in counted.values()) > 100_000, "nothing was counted"
