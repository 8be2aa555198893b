"""Option tables: one frozen dataclass for each kind of read defines all its options.

Each field of such a dataclass is made by `option(...)` and carries the key as users write it, the parser, one
sentence of documentation, examples that are accepted, and examples that are refused, each with its error
condition. From this one table come the parsing here (keys in any case, "did you mean"), the reference page
(`reference_rows`) and a test that runs every example.

Rule: parse once, on entry; after that no raw option text exists. Why not read options where they are needed:
a misspelt key would be silently ignored until something asks for it.

>>> @dataclass(frozen=True)
... class Doors:
...     width_mm: int = option("widthMm", int, "Width.", default=800, accepts=("900",))
>>> read_surface(Doors, {"WIDTHMM": "700"})
Doors(width_mm=700)
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from penstock.core.errors import OptionError
from penstock.core.redaction import is_secret_name, redact_value

Surface = TypeVar("Surface")
Parsed = TypeVar("Parsed")
_METADATA = "penstock.option"


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """The definition of one option, from its field. `rejects` pairs a text with its error condition."""

    key: str
    parse: Callable[[str], Any]
    doc: str
    default_doc: str
    accepts: tuple[str, ...]
    rejects: tuple[tuple[str, str], ...]
    needs: Mapping[str, str]  # other options that an example needs
    only_with: Mapping[str, tuple[str, ...]]  # no effect without one of these, with these values if given


def option(
    key: str,
    parse: Callable[[str], Any],
    doc: str,
    *,
    default: Any = None,
    default_doc: str | None = None,
    accepts: Iterable[str] = (),
    rejects: Iterable[tuple[str, str]] = (),
    needs: Mapping[str, str] | None = None,
    only_with: Mapping[str, tuple[str, ...]] | None = None,
) -> Any:
    """Return a dataclass field that defines an option. Without `default_doc`, the default itself is shown."""
    shown = default_doc if default_doc is not None else _show_default(default)
    spec = OptionSpec(
        key, parse, doc, shown, tuple(accepts), tuple(rejects), dict(needs or {}), dict(only_with or {})
    )
    return field(default=default, metadata={_METADATA: spec})


def option_specs(surface: type[Any]) -> dict[str, OptionSpec]:
    """Return the option of each field name, in the order of the table."""
    return {each.name: each.metadata[_METADATA] for each in fields(surface) if _METADATA in each.metadata}


def read_surface(surface: type[Surface], texts: Mapping[str, str], *, shown_prefix: str = "") -> Surface:
    """Return the table's dataclass, parsed from the texts. Keys may be in any case; none may be unknown."""
    lowered = {key.lower(): text for key, text in texts.items()}
    values = {
        name: parse_option(spec, lowered[spec.key.lower()], shown_prefix=shown_prefix)
        for name, spec in option_specs(surface).items()
        if spec.key.lower() in lowered
    }
    return surface(**values)


def refuse_stranded(surface: type[Any], table: Any, texts: Mapping[str, str]) -> None:
    """Raise if an option is set that has no effect without another one, which is not set.

    An option that is set to its default is accepted.
    """
    given = {key.lower(): text.strip().lower() for key, text in texts.items()}
    defaults = {each.name: each.default for each in fields(surface)}
    for name, spec in option_specs(surface).items():
        if not spec.only_with or spec.key.lower() not in given or getattr(table, name) == defaults[name]:
            continue
        if not any(_is_set(given.get(key.lower()), values) for key, values in spec.only_with.items()):
            others = " or ".join(
                f"`{key}`" + (" = " + " or ".join(f"`{value}`" for value in values) if values else "")
                for key, values in spec.only_with.items()
            )
            raise OptionError(
                "OPTION_MISSING",
                f"Option `{spec.key}` is set, but does nothing without {others}.",
                hint=f"Set that too, or leave `{spec.key}` out.",
                facts={"option": spec.key, "needs": list(spec.only_with)},
            )


def _is_set(text: str | None, values: tuple[str, ...]) -> bool:
    return text is not None and (not values or text in [each.lower() for each in values])


def parse_option(spec: OptionSpec, text: str, *, shown_prefix: str = "") -> Any:
    return parse_setting(shown_prefix + spec.key, text, spec.parse)


def parse_setting(key: str, text: str, parse: Callable[[str], Parsed]) -> Parsed:
    """Return the parsed text; raise an `OptionError` that names the option and leaves out secrets."""
    try:
        return parse(text)
    except ValueError as error:
        # A parser's message may quote its input.
        raise invalid(key, text, "a usable value" if is_secret_name(key) else str(error)) from None


def invalid(key: str, text: str, expected: str, *, hint: str | None = None) -> OptionError:
    """Return the error for a value that cannot be used."""
    shown = redact_value(key, text)
    return OptionError(
        "OPTION_INVALID",
        f"Option `{key}` is {shown!r}; expected {expected}.",
        hint=hint or "Correct it; if the option has a default, leaving it out uses that.",
        facts={"option": key, "value": shown},
    )


def missing_option(key: str, because: str) -> OptionError:
    """Return the error for an option that is not set and has to be."""
    return OptionError(
        "OPTION_MISSING", f"Option `{key}` is not set, but {because}.", hint="Set it.", facts={"option": key}
    )


def conflicting_option(key: str, why: str) -> OptionError:
    """Return the error for an option that another one rules out."""
    return OptionError(
        "OPTION_CONFLICT",
        f"Option `{key}` cannot be used here: {why}.",
        hint="Leave one of them out.",
        facts={"option": key},
    )


def find_close_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known key that was probably meant, as the table writes it."""
    by_lower = {each.lower(): each for each in known}
    # 0.8 finds transposed and missing letters and plurals; below it, unrelated short keys match.
    close = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.8)
    return by_lower[close[0]] if close else None


def unknown_option(key: str, known: Iterable[str]) -> OptionError:
    """Return the error for a key that no table knows."""
    meant = find_close_key(key, known)
    return OptionError(
        "OPTION_UNKNOWN",
        f"There is no option `{key}`.",
        hint=f"Did you mean `{meant}`?" if meant else "The reference page lists all options.",
        facts={"option": key, "meant": meant},
    )


def reference_rows(
    surface: type[Any], *, shown_prefix: str = "", leave_out: Collection[str] = ()
) -> list[str]:
    """Return the table as Markdown rows for the generated reference page, without the keys in `leave_out`."""
    rows = ["| Option | Default | Meaning | For example |", "|---|---|---|---|"]
    for spec in option_specs(surface).values():
        if spec.key in leave_out:
            continue
        examples = ", ".join(f"`{text}`" for text in spec.accepts[:3])
        cells = (f"`{shown_prefix}{spec.key}`", spec.default_doc, spec.doc, examples)
        rows.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return rows


def _show_default(default: Any) -> str:
    if default is None or default is MISSING:
        return "none"
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"
