"""Writes docs/reference/ from its sources: the tests' docstrings, the option tables, the errors in the code.

Rule: nobody edits these pages. A line is ticked because a test names its id, `T01, B041: ...`, and for no
other reason. The wording of each line is in docs/reference/data/. Why not keep the ticks by hand: they would
stay when the test goes. tests/docs fails when a page is stale or a docstring names an unknown id.

Example: `python tools/reference.py` (or `make docs`) prints the pages it changed.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "reference"
NOTICE = "<!-- Written by `make docs`; edit the tests, the sources or docs/reference/data instead. -->"

#: The headings of the option tables; a new table shows its class name until it gets one.
TITLES = {
    "BatchTable": "Batch reads",
    "DirectTable": "Direct streams: options that only they have",
    "FormatTable": "Typed values, in batch reads and streams",
    "StreamTable": "Streams: options that differ from those of a batch read",
    "JavaSettings": "Kafka's client, after the prefix `kafka.`",
}

ONE_ID = r"(?:B\d{3}|[A-I]\d{1,2}|[TS]\d{2})"
CLAIM = re.compile(rf"\s*({ONE_ID}(?:,\s+{ONE_ID})*):\s")
LOOKS_LIKE_A_CLAIM = re.compile(r"\s*[A-Z]\d{1,3}\b")


@dataclass(frozen=True, slots=True, order=True)
class Proof:
    """One test that names ids."""

    path: str
    name: str

    def link(self) -> str:
        sentence = self.name.removeprefix("test_").replace("_", " ")
        return f"[{sentence}](../../{self.path})"


@dataclass(frozen=True, slots=True)
class Claims:
    """The tests that name each id, and the docstrings that begin like a claim but are not one."""

    proofs: Mapping[str, tuple[Proof, ...]]
    malformed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """One data file: the lines by id, their areas and scopes, and the lines settled by a decision."""

    title: str
    introduction: str
    lines: Mapping[str, str]
    areas: Mapping[str, str]
    scopes: Mapping[str, str]
    answers: Mapping[str, str]


# --- reading --------------------------------------------------------------------------------------


def read_claims(tests: Path = ROOT / "tests") -> Claims:
    """Return the ids in the docstrings of all test functions."""
    proofs: dict[str, list[Proof]] = {}
    malformed = []
    for path in sorted(tests.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
                continue
            text = ast.get_docstring(node) or ""
            proof = Proof(path.relative_to(tests.parent).as_posix(), node.name)
            if claim := CLAIM.match(text + "\n"):
                for each in re.findall(ONE_ID, claim[1]):
                    proofs.setdefault(each, []).append(proof)
            elif LOOKS_LIKE_A_CLAIM.match(text):
                malformed.append(f"{proof.path}::{proof.name}: {text.splitlines()[0]}")
    return Claims({each: tuple(sorted(found)) for each, found in proofs.items()}, tuple(malformed))


def read_catalogue(name: str, title: str, introduction: str) -> Catalogue:
    """Return docs/reference/data/<name>.toml: one table per area, then `scope` and `answers`."""
    tables = tomllib.loads((PAGES / "data" / f"{name}.toml").read_text())
    answers = tables.pop("answers")
    scopes = {each: scope for scope, ids in tables.pop("scope", {}).items() for each in ids.split()}
    lines = {each: text for area in tables.values() for each, text in area.items()}
    areas = {each: area for area, found in tables.items() for each in found}
    return Catalogue(title, introduction, lines, areas, scopes, answers)


def read_catalogues() -> dict[str, Catalogue]:
    """Return all three catalogues, by the name of their page."""
    return {
        "spec": read_catalogue("spec", "What was asked for", "Every item of the specification."),
        "behaviours": read_catalogue(
            "behaviours",
            "Behaviours of Spark's Kafka connector",
            "What users of Spark's own connector rely on. Scope M: the same as seen from outside; "
            "A: the same guarantee in our own form; O: only if we ship the feature.",
        ),
        "traps": read_catalogue(
            "traps", "Traps and security", "Mistakes known from this field, and the answer owed to each."
        ),
    }


# --- writing --------------------------------------------------------------------------------------


def write_catalogue_page(catalogue: Catalogue, claims: Claims) -> str:
    """Return the page: how much is proven, then one row per line."""
    scoped = bool(catalogue.scopes)
    head = ["id", *(["scope"] if scoped else []), "what holds", "proven by"]
    rows = []
    for area in dict.fromkeys(catalogue.areas.values()):
        rows += ["", f"## {area}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for each, text in catalogue.lines.items():
            if catalogue.areas[each] == area:
                scope = [catalogue.scopes.get(each, "M")] if scoped else []
                rows.append(
                    f"| {' | '.join([each, *scope, text, describe_proof(each, catalogue, claims)])} |"
                )
    return "\n".join(
        [
            NOTICE,
            f"# {catalogue.title}",
            "",
            catalogue.introduction,
            "",
            count_proofs(catalogue, claims),
            *rows,
            "",
        ]
    )


def describe_proof(each: str, catalogue: Catalogue, claims: Claims) -> str:
    if found := claims.proofs.get(each):
        return "✓ " + "<br>".join(proof.link() for proof in found)
    return catalogue.answers.get(each, "not yet")


def count_proofs(catalogue: Catalogue, claims: Claims) -> str:
    proven = [each for each in catalogue.lines if each in claims.proofs]
    settled = [each for each in catalogue.answers if each not in claims.proofs]
    text = f"Proven by a test: **{len(proven)} of {len(catalogue.lines)}**"
    if catalogue.scopes:
        total, done = (
            Counter(catalogue.scopes.get(i, "M") for i in ids) for ids in (catalogue.lines, proven)
        )
        text += f" ({', '.join(f'{scope}: {done[scope]} of {total[scope]}' for scope in 'MAO')})"
    return text + (f"; settled by a decision: {len(settled)}." if settled else ".")


def write_options_page() -> str:
    """Return the page with every option table of the core, in its own words."""
    from penstock.core.client.java_setting_table import JavaSettings
    from penstock.core.client.java_settings import PREFIX
    from penstock.core.options.option_table import reference_rows

    page = [
        NOTICE,
        "# Options",
        "",
        "Names are accepted in any letter case; an unknown one is an error.",
        "",
        "A value may be kept elsewhere and named here, so that Spark's plans and pages show the name only:",
        "`${env:NAME}` is an environment variable of the driver, `${file:/path}` a file's whole text, and",
        "`${file:/path:name}` the line `name=value` of a file. The whole value is one such reference.",
    ]
    for surface in find_option_tables():
        prefix = PREFIX if surface is JavaSettings else ""
        title = TITLES.get(surface.__name__, surface.__name__)
        rows = reference_rows(surface, shown_prefix=prefix, leave_out=_find_told(surface))
        page += ["", f"## {title}", "", *rows]
    return "\n".join([*page, ""])


def _find_told(surface: type) -> set[str]:
    """Return the keys that another table of the page describes alike, and those that a stream refuses."""
    from penstock.core.options.batch_option_table import BatchTable
    from penstock.core.options.option_table import option_specs
    from penstock.core.options.stream_option_table import ENDS, StreamTable
    from penstock.core.options.typed_column_options import FormatTable

    typed = {spec.key for spec in option_specs(FormatTable).values()}
    if surface is BatchTable:
        return typed
    if surface is not StreamTable:
        return set()
    batch = {spec.key: (spec.default_doc, spec.doc) for spec in option_specs(BatchTable).values()}
    own = option_specs(StreamTable).values()
    alike = {spec.key for spec in own if batch.get(spec.key) == (spec.default_doc, spec.doc)}
    return typed | alike | set(ENDS)


def find_option_tables() -> list[type]:
    """Return every dataclass of the core whose fields are options, Spark's side before Kafka's."""
    import penstock.core
    from penstock.core.options.option_table import option_specs

    tables = []
    for module in pkgutil.walk_packages(penstock.core.__path__, "penstock.core."):
        for each in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(each, type)
                and is_dataclass(each)
                and each.__module__ == module.name
                and option_specs(each)
            ):
                tables.append(each)
    return sorted(tables, key=lambda table: table.__name__ == "JavaSettings")


@dataclass(frozen=True, slots=True, order=True)
class ErrorText:
    """One place in the sources that raises a condition."""

    condition: str
    kind: str
    what: str
    hint: str


def write_errors_page(sources: Path = ROOT / "src") -> str:
    """Return the page with every condition, its class, text and advice; changing parts are shown as `…`."""
    rows = [
        f"| `{each.condition}` | {each.kind} | {each.what} | {each.hint} |"
        for each in sorted(set(find_error_texts(sources)))
    ]
    return "\n".join(
        [
            NOTICE,
            "# Errors",
            "",
            "Each error reads `[CONDITION] what happened. What to do next.` Spark passes errors between its "
            "processes as text, so look for the condition, not for the class.",
            "",
            "| condition | class | what happened | what to do |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def find_error_texts(sources: Path) -> Iterator[ErrorText]:
    """Yield the texts of all calls in the sources that give our error classes a literal condition."""
    from penstock.core import errors

    kinds = {name for name, each in vars(errors).items() if isinstance(each, type)}
    for path in sorted(sources.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)):
                continue
            kind = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            named = {each.arg: each.value for each in node.keywords if each.arg}
            condition = named.get("condition", node.args[0] if node.args else None)
            if not (kind in kinds and isinstance(condition, ast.Constant)):
                continue
            if isinstance(condition.value, str):
                what = named.get("what", node.args[1] if len(node.args) > 1 else None)
                hint = show_text(named.get("hint")).strip()
                yield ErrorText(condition.value, kind, show_text(what).strip(), hint)


def show_text(node: ast.expr | None) -> str:
    """Return the text of a literal; whatever is computed becomes `…`."""
    match node:
        case None:
            return ""
        case ast.Constant(value=str(text)):
            return text.replace("|", "\\|").replace("\n", " ")
        case ast.JoinedStr(values=parts):
            return "".join(show_text(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return show_text(left) + show_text(right)
        case _:
            return "…"


def write_decisions_index(folder: Path = ROOT / "docs" / "decisions") -> str:
    """Return the page with the decision records by number, each with its first heading."""
    rows = []
    for path in sorted(folder.glob("[0-9]*.md")):
        heading = path.read_text().splitlines()[0].removeprefix("# ")
        rows.append(f"- [{heading}]({path.name})")
    return "\n".join(
        [
            NOTICE,
            "# Decisions",
            "",
            "One page for each decision that somebody will question later: what was decided, why, what was "
            "measured, what it costs. A page is not rewritten when the decision "
            "changes; a new one replaces it.",
            "",
            *rows,
            "",
        ]
    )


def write_pages() -> dict[Path, str]:
    """Return every generated page, as its path and its text."""
    claims = read_claims()
    pages = {f"{name}.md": write_catalogue_page(each, claims) for name, each in read_catalogues().items()}
    pages["options.md"] = write_options_page()
    pages["errors.md"] = write_errors_page()
    written = {PAGES / name: text for name, text in pages.items()}
    written[ROOT / "docs" / "decisions" / "README.md"] = write_decisions_index()
    return written


def main() -> None:
    for path, text in write_pages().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
