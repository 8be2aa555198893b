"""The page on defending a site: the real parser accepts its commands, its rules load, and its facts hold."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from penstock.apps.accesslog.blocking.blocklist_formats import FORMATS
from penstock.apps.accesslog.blocking.enforcement_api import DEFAULT_LISTEN
from penstock.apps.accesslog.defence.defence_settings import DefenceSettings
from penstock.apps.accesslog.detection.rule_set import CLASSES, RuleSet
from penstock.apps.accesslog.monitoring import load_merging
from penstock.apps.accesslog.monitoring.load_merging import MonitorSettings
from penstock.apps.accesslog.stream.line_stage import MOST_AHEAD_US
from penstock.cli.commands.accesslog import VERBS

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "defend-a-site.md").read_text()
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
MINUTE_US = 60_000_000


def find_commands() -> list[str]:
    """Return every command of ours in the page's blocks, without pipes and comments."""
    lines = [line for kind, text in BLOCK.findall(PAGE) if not kind for line in text.splitlines()]
    return [
        line.partition(" # ")[0].partition(" | ")[0].strip() for line in lines if line.startswith("penstock ")
    ]


@pytest.mark.parametrize("command", find_commands())
def test_a_command_on_the_page_is_one_that_the_program_takes(command: str) -> None:
    _, name, *arguments = shlex.split(command)
    module = importlib.import_module(f"penstock.cli.commands.{name}")
    parser = argparse.ArgumentParser(prog=f"penstock {name}", exit_on_error=False)
    module.add_arguments(parser)
    parser.parse_args(arguments)


def test_the_page_shows_every_step_from_the_log_to_the_list() -> None:
    verbs = {shlex.split(each)[2] for each in find_commands() if each.startswith("penstock accesslog ")}
    assert verbs >= {"ship", "run", "simulate", "decisions", "blocklist", "serve", "unban", "replay"}
    assert verbs <= set(VERBS)


def test_the_rules_on_the_page_are_rules() -> None:
    [text] = [text for kind, text in BLOCK.findall(PAGE) if kind == "yaml"]
    assert [(rule.id, rule.mode) for rule in RuleSet.parse(text).rules] == [
        ("shop.old-admin", "simulate"),
        ("shop.price-scraper", "enforce"),
    ]


def test_the_page_explains_every_class_and_every_format() -> None:
    assert [each for each in CLASSES if f"`{each}`" not in PAGE] == []
    assert [each.name for each in FORMATS.values() if f"`{each.name}`" not in PAGE] == []
    for each in FORMATS.values():
        shown = each.file_name if each.name not in ("csv", "json") else f".{each.name}"
        assert f"`{shown}`" in PAGE


def test_the_numbers_on_the_page_are_those_of_the_program() -> None:
    settings = DefenceSettings.default()
    assert settings.ban_us == 10 * MINUTE_US
    assert settings.most_ban_us == 7 * 24 * 60 * MINUTE_US
    assert settings.score_half_life_us == 30 * MINUTE_US
    assert settings.lateness_us == 1_000_000
    for words in ("lasts ten minutes", "up to seven days", "half-life of 30 minutes", "`lateness` (1 s)"):
        assert words in PAGE
    monitoring = MonitorSettings()
    assert load_merging._DEAD_US + monitoring.grace_us == 20 * MINUTE_US
    assert monitoring.grace_us == 5 * MINUTE_US
    assert MOST_AHEAD_US == MINUTE_US
    for words in ("20 minutes behind the others (5 minutes,", "at most a minute later than its record"):
        assert words in PAGE
    assert DEFAULT_LISTEN in PAGE
