"""Measures how well attackers are found in real labelled logs, beside known rule sets on the same logs.

The anchors' figures were measured with their published filters and thresholds, once, outside this program;
they are printed for comparison. Everything of ours is measured here, in each run.
"""

from __future__ import annotations

import csv
import os
from collections import Counter
from pathlib import Path
from typing import Any

from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.request_classification import classify
from penstock.apps.accesslog.detection.rule_set import default_rules
from penstock.apps.accesslog.evaluation.decision_scoring import (
    Score,
    count_visits,
    describe,
    read_decisions,
    read_labels,
    score,
)
from penstock.apps.accesslog.evaluation.log_replay import replay
from penstock.apps.accesslog.first_look.log_blocks import BLOCK_BYTES, open_log, read_blocks
from penstock.apps.accesslog.parsing.line_parser import make_parser
from penstock.cli.commands.accesslog.replay import write_decisions

#: Rule set: recall, precision, benign clients hit, attack requests blocked, median requests to detect.
ANCHORS = {
    "CrowdSec base-http + http-cve": (0.205, 0.62, 0.0083, 0.682, 1.0),
    "fail2ban": (0.038, 0.75, 0.0008, 0.666, 3.5),
    "Wazuh level >= 10": (0.038, 0.75, 0.0008, 0.672, 18.5),
    "CRS PL1, one hit blocks": (0.231, 0.20, 0.059, 0.674, 1.0),
}
#: Single payloads: share caught, share of harmless ones hit.
PAYLOAD_ANCHORS = {"CrowdSec": (0.05, 0.02), "Wazuh": (0.09, 0.04), "CRS PL1": (0.60, 0.07)}


def find_data() -> Path:
    beside = Path(__file__).parents[2] / "shared" / "data"
    return Path(os.environ.get("PENSTOCK_ACCESSLOG_DATA", beside))


def run_goals(folder: Path) -> dict[str, Any]:
    data = find_data()
    if not (data / "labels").is_dir():
        print(f"\n== goals: {data} is not here; set PENSTOCK_ACCESSLOG_DATA")
        return {}
    settings = DefenceSettings(default_rules(), block_private=True)  # some logs were made in a laboratory
    total, by_log = Score(), {}
    for labels in sorted((data / "labels").glob("*.csv")):
        log = next(data.glob(f"*/{labels.stem}.log"))
        out = folder / f"{labels.stem}.csv"
        write_decisions(str(out), [row for row in replay([log], settings).rows if row["action"] == "block"])
        one = score(read_decisions(out), read_labels(labels), count_visits([log]))
        by_log[labels.stem] = [one.found, one.attackers, one.benign_hit, one.benign]
        total += one
    requests = sorted(number for one in total.classes.values() for number in one.requests)
    print("\n== goals: clients of the labelled logs")
    print(
        "  (penstock measured now; the others' figures are constants, measured once outside of this program)"
    )
    print(f"  {'':<32} recall  precision  benign hit  blocked  median requests")
    ours = (total.recall, total.precision, total.benign_share, total.blocked, requests[len(requests) // 2])
    for name, figures in {"penstock": ours, **ANCHORS}.items():
        recall, precision, benign, blocked, median = figures
        print(f"  {name:<32} {recall:6.3f}  {precision:9.3f}  {benign:10.2%}  {blocked:7.3f}  {median:15g}")
    for line in describe(total):
        print(f"  {line}")
    for name, (found, attackers, hit, benign_clients) in by_log.items():
        print(f"  {name:<32} {found} of {attackers} attackers, {hit} of {benign_clients} benign clients")
    return {
        "recall": total.recall,
        "precision": total.precision,
        "benign_hit": total.benign_hit,
        "benign": total.benign,
        "blocked": total.blocked,
        "median_requests": ours[4],
        "classes": {
            name: {"clients": one.clients, "requests": list(one.requests)}
            for name, one in total.classes.items()
        },
        "logs": by_log,
        "payloads": _judge_payloads(data),
        "lines": _count_lines(data),
    }


def _judge_payloads(data: Path) -> dict[str, Any]:
    with (data / "payloads" / "crs-uri-tests.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    judged = classify([row["uri"] for row in rows], default_rules())
    seen, hit = Counter[str](), Counter[str]()
    by_class: Counter[tuple[str, str]] = Counter()
    for row, each in zip(rows, judged, strict=True):
        seen[row["label"]] += 1
        hit[row["label"]] += each.verdict == "attack"
        by_class[row["class"], "seen"] += row["label"] == "attack"
        by_class[row["class"], "caught"] += row["label"] == "attack" and each.verdict == "attack"
    caught, wrong = hit["attack"] / seen["attack"], hit["fp_guard"] / seen["fp_guard"]
    print("\n== goals: single payloads                caught  harmless hit")
    for name, figures in {"penstock": (caught, wrong), **PAYLOAD_ANCHORS}.items():
        print(f"  {name:<36} {figures[0]:8.2f}  {figures[1]:12.2f}")
    for name in sorted({each for each, _ in by_class}):
        print(f"    {name:<34} {by_class[name, 'caught']} of {by_class[name, 'seen']}")
    return {"caught": caught, "harmless_hit": wrong, "attacks": seen["attack"], "harmless": seen["fp_guard"]}


def _count_lines(data: Path) -> dict[str, list[int]]:
    """Return for each log how many lines are parsed and how many it has; every other line is kept."""
    parser, counted = make_parser(), {}
    logs = [*sorted(data.glob("*/*.log")), *sorted(data.glob("*/*.gz")), *sorted(data.glob("*/*/*.log"))]
    for log in logs:
        parsed = lines = 0
        with open_log(log) as file:
            for values in read_blocks(file, BLOCK_BYTES):
                found = parser.parse(values)
                parsed, lines = parsed + len(found), lines + len(values)
                assert len(found) + found.bad_rows.size == len(values)
        counted[log.name] = [parsed, lines]
    parsed, lines = (sum(each[n] for each in counted.values()) for n in range(2))
    print(f"\n== goals: {parsed:,} of {lines:,} lines parsed ({parsed / lines:.3%}), the rest kept")
    return counted
