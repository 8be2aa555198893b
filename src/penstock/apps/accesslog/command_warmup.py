"""Compiles the kernels of all commands in advance: those of the pipeline, a replay, a shipper and the others.

Rule: the calls here are those that the commands make, with all kinds of lines that the simulator writes. A
kernel that is not called here is compiled when it is first needed, while the user waits. A test looks for
such kernels.

    warm_up_all()
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import get_args

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.request_classification import classify
from penstock.apps.accesslog.detection.rule_examples import find_broken_examples
from penstock.apps.accesslog.evaluation.decision_scoring import count_visits
from penstock.apps.accesslog.evaluation.log_replay import replay
from penstock.apps.accesslog.first_look.line_samples import take_sample
from penstock.apps.accesslog.monitoring.load_merging import MonitorSettings
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.apps.accesslog.shipping.shipper import KeyChoice, make_records
from penstock.apps.accesslog.shipping.whole_lines import Piece
from penstock.apps.accesslog.simulation.traffic_simulation import Simulation, SimulationSettings
from penstock.apps.accesslog.stream.line_stage import Tools
from penstock.apps.accesslog.stream.pipeline_warmup import warm_up
from penstock.kafka.records.record_warmup import compile_encoding
from penstock.kernels.newline_cutting import cut_lines

_LONGEST_LINE_BYTES = 100_000


def warm_up_all() -> None:
    """Run simulated lines through everything, in this process."""
    simulation = Simulation(SimulationSettings(rate=200, seconds=2, servers=1))
    text = b"".join(server.text for step in simulation.steps(newlines=True) for server in step.servers)
    compile_encoding()
    lines, cut_rows = cut_lines(text, _LONGEST_LINE_BYTES)
    for key in get_args(KeyChoice):
        make_records([Piece("access.log", lines, cut_rows, len(text))], "web1", key)
    take_sample(lines, make_parser(trusted_proxies=["192.0.2.0/24"]))
    defence = DefenceSettings.default()
    find_broken_examples(defence.ruleset)
    classify(["/about", "/?id=1'+OR+'1'='1"], defence.ruleset)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "access.log")
        log.write_bytes(text)
        replay([log], defence)
        count_visits([log])
    warm_up(Tools("lines", make_parser(), defence, MonitorSettings()))
