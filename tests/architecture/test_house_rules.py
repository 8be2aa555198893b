"""The house rules that a machine can check, applied to every source file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LIBRARY = [path for path in SOURCES if "cli" not in path.parts]
CORE = [path for path in SOURCES if "core" in path.parts]
ENGINES = [path for path in SOURCES if "engines" in path.parts]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
LINE_LIMIT = 500
MOST_FILES_IN_A_ROOM = 15
MOST_FILES_OF_TESTS = 20
#: Folders of unit tests for code outside the package.
NOT_OF_THE_PACKAGE = ("bench", "tools")

#: Importing the format must load none of these, because Spark imports it whenever it looks up any Python
#: source.
HEAVY = ("numba", "llvmlite", "kafka", "pyarrow", "pandas", "numpy", "cramjam", "crc32c", "cryptography")
#: Names that say nothing about what a thing is for.
EMPTY_NAMES = re.compile(r"(Manager|Helper|Utils?|Impl)$|^Base[A-Z]|^common$|(^|_)(utils?|helpers?|common)$")
FORBIDDEN_TEXT = re.compile(
    r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b"
    r"|(?<![\w.~])/(?:work|root|farm|home/\w+|tmp/\w+)/"
    r"|pypi\.org|pythonhosted|repo1?\.maven|npmjs",
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which is parsed once for all rules."""
    return ast.parse(path.read_text())


def walk(paths: list[Path]) -> Iterator[tuple[str, ast.AST]]:
    """Yield every node of the given files with its location."""
    for path in paths:
        name = name_of(path)
        for node in ast.walk(parse(path)):
            yield f"{name}:{getattr(node, 'lineno', 0)}", node


def names_in(node: ast.AST) -> set[str]:
    """Return the names and attributes that an expression uses."""
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return found | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def dotted_name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def test_imports_point_inward_only() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    outcome = subprocess.run(
        [lint, "--no-cache"], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
    )
    assert outcome.returncode == 0, outcome.stdout


def test_finding_the_format_loads_nothing_heavy() -> None:
    program = "import pyspark_penstock, sys; print(*{name.partition('.')[0] for name in sys.modules})"
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert outcome.returncode == 0, outcome.stderr
    assert set(outcome.stdout.split()) & set(HEAVY) == set()


POSITIONS = re.compile(
    r"(^|_)(offsets?|starts?|until|ends?|earliest|latest|positions?|begins?)$", re.IGNORECASE
)


def test_engines_compare_no_offsets() -> None:
    """Offset decisions belong to planning alone; an engine that compares offsets makes such a decision."""
    compares = ast.Lt | ast.LtE | ast.Gt | ast.GtE | ast.Eq | ast.NotEq
    compared = [
        f"{Path(place.partition(':')[0]).name}: {ast.unparse(node)}"
        for place, node in walk(ENGINES)
        if isinstance(node, ast.Compare)
        and any(isinstance(op, compares) for op in node.ops)
        # A comparison with a text is about a setting: `offsets == "kafka"`.
        and not any(
            isinstance(each, ast.Constant) and isinstance(each.value, str) for each in node.comparators
        )
        and any(POSITIONS.search(name) for name in names_in(node))
    ]
    assert sorted(compared) == [
        # An audit looks twice, to see whether a stream has written meanwhile.
        "file_audit.py: before == _find_position(folder, store, stream)",
        # A task checks what it has read against its work order.
        "order_frames.py: expected != wanted.until.offset",
        "order_frames.py: offsets != np.arange(expected, expected + offsets.size)",
    ]


def test_engines_count_with_no_offsets() -> None:
    """Only planning calculates how many records lie between two offsets."""

    def is_position(node: ast.expr) -> bool:
        while isinstance(node, ast.Subscript):
            node = node.value
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        return POSITIONS.search(name) is not None

    assert [
        f"{place}: {ast.unparse(node)}"
        for place, node in walk(ENGINES)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add | ast.Sub)
        and (is_position(node.left) or is_position(node.right))
    ] == []


def test_the_library_never_prints_and_never_configures_logging() -> None:
    loud = re.compile(
        r"print|(sys\.)?(stdout|stderr)\.write|logging\.(basicConfig|config\..*|disable|captureWarnings)"
        r"|.*\.(addHandler|setLevel)"
    )
    assert [
        place
        for place, node in walk(LIBRARY)
        if isinstance(node, ast.Call) and loud.fullmatch(dotted_name(node.func))
    ] == []


def test_every_logger_of_ours_writes_one_line_for_one_event() -> None:
    """S34: a logger that does not come from `get_logger` would write hostile input unescaped."""
    made = re.compile(
        r".*\b(getLogger|getChild|Logger|LoggerAdapter)"
        r"|logging\.(debug|info|warn|warning|error|exception|critical|log)"
    )
    found = [
        place
        for place, node in walk(LIBRARY)
        if (isinstance(node, ast.Call) and made.fullmatch(dotted_name(node.func)))
        # An import under another name would not be found here.
        or (isinstance(node, ast.ImportFrom) and node.module == "logging")
        or (
            isinstance(node, ast.Import)
            and any(each.name == "logging" and each.asname for each in node.names)
        )
    ]
    assert len(found) == 1, found
    assert "core/loggers.py" in found[0]


def test_every_page_that_a_message_names_is_there() -> None:
    named = [name for path in SOURCES for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())]
    assert [name for name in named if not (ROOT / name).is_file()] == []
    assert named


def test_no_except_catches_everything_silently() -> None:
    swallowed = []
    for place, node in walk(SOURCES):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = names_in(node.type) if node.type else {"BaseException"}
        raises = any(isinstance(each, ast.Raise) for each in ast.walk(node))
        if node.type is None or ({"BaseException", "Exception"} & caught and not raises):
            swallowed.append(place)
    assert swallowed == []


def test_every_call_to_a_shell_is_absent() -> None:
    """S24: no text from a user ever reaches a shell, because no code starts one."""
    assert [
        place
        for place, node in walk(SOURCES)
        if isinstance(node, ast.Call)
        and (
            dotted_name(node.func) in ("os.system", "os.popen", "subprocess.getoutput")
            or any(each.arg == "shell" for each in node.keywords)
        )
    ] == []


def test_the_core_has_no_sentinel_offsets() -> None:
    """Kafka's -1 and -2 may appear only where texts are parsed (core/options/position_rules.py)."""
    behind_the_door = [path for path in CORE if path.name != "position_rules.py"]
    found = []
    for place, node in walk(behind_the_door):
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = node.operand
            if isinstance(operand, ast.Constant) and operand.value in (1, 2):
                found.append(place)
    indexes = {
        f"{place.partition(':')[0]}:{node.slice.lineno}"
        for place, node in walk(behind_the_door)
        if isinstance(node, ast.Subscript)
    }
    assert [place for place in found if place not in indexes] == []


def test_the_core_asks_no_clock_and_no_dice() -> None:
    asked = re.compile(
        r"(time|random|secrets|uuid)\.\w+|datetime\.(datetime\.)?(now|today|utcnow)|os\.urandom"
    )
    assert [
        place
        for place, node in walk(CORE)
        if isinstance(node, ast.Call) and asked.fullmatch(dotted_name(node.func))
    ] == []


def test_no_message_names_an_exceptions_class() -> None:
    """Messages tell a user what happened, in words; an exception's class name does not.

    There are two exceptions. ZooKeeper's client says no more than its classes do, so its names are put into
    words there. The checker's messages are for programmers.
    """
    naming = [name_of(path) for path in SOURCES if "type(error).__name__" in path.read_text()]
    assert naming == ["src/penstock/stores/offsets/zookeeper_store.py", "src/penstock/testing/checker.py"]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_source_file_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINE_LIMIT
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "no docstring at the top"


def test_names_say_what_things_are_for() -> None:
    stems = [(name_of(path), path.stem) for path in SOURCES]
    classes = [(place, node.name) for place, node in walk(SOURCES) if isinstance(node, ast.ClassDef)]
    assert [(place, name) for place, name in stems + classes if EMPTY_NAMES.search(name)] == []


def test_no_committed_text_names_a_machine_a_registry_or_unfinished_work() -> None:
    """S36: the lock files name no download host either, because their hashes decide what is accepted."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    found = []
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.resolve() == Path(__file__).resolve() or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # a golden file of bytes
        found += [f"{name}: {each[0]}" for each in FORBIDDEN_TEXT.finditer(text)]
    assert found == []


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_dependency_is_pinned_with_hashes(name: str) -> None:
    """S36: pip accepts only these versions with exactly these contents."""
    text = (ROOT / name).read_text()
    assert not re.search(r"https?://|^--", text, re.MULTILINE)
    entries = re.split(r"\n(?=[a-z0-9])", text)[1:]
    assert len(entries) > 5
    assert [each for each in entries if "==" not in each or "--hash=sha256:" not in each] == []


def test_warnings_are_errors_here() -> None:
    with pytest.raises(UserWarning, match="noticed"):
        warnings.warn("noticed", stacklevel=1)


def test_no_test_skips_itself() -> None:
    """The one exception is a fixture: real logs may be absent, and the accounting knows why."""
    ways_out = re.compile(r"pytest\.(importor)?skip|pytest\.xfail|pytest\.mark\.(skip\w*|xfail|flaky)")
    found = [
        f"{place.partition(':')[0]}: {ast.unparse(node)}"
        for place, node in walk(TESTS)
        if isinstance(node, ast.Attribute) and ways_out.fullmatch(dotted_name(node))
    ]
    assert found == ["tests/conftest.py: pytest.skip"]


def test_no_test_waits_without_looking() -> None:
    """A sleep is allowed in a loop that checks a condition. On its own it is a guess, and guesses go wrong.

    A timer is a guess wherever it stands: act when something was seen, not when time has passed.
    """
    for path in TESTS:
        tree = parse(path)
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.While | ast.For)]
        looked = {id(node) for loop in loops for node in ast.walk(loop)}
        blind = [
            f"{name_of(path)}:{node.lineno}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and (
                (dotted_name(node.func) in ("time.sleep", "sleep") and id(node) not in looked)
                or dotted_name(node.func) in ("threading.Timer", "Timer")
            )
        ]
        assert blind == []


def test_every_file_of_tests_belongs_to_one_piece_of_a_run() -> None:
    from tools.run_tests import NOT_HERE, PIECES, TESTS, list_unplaced

    assert list_unplaced() == []
    places = [*NOT_HERE, *(folder for piece in PIECES.values() for folder in piece.folders)]
    assert [name for name in places if not (TESTS / name).exists()] == []


def test_a_public_class_or_type_has_a_name_of_its_own() -> None:
    """Two classes with one name mislead a reader and a search. So does an alias with a class's name."""
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for node in parse(path).body:
            for name in list_assigned(node):
                if name[0].isupper() and not name.isupper():
                    places.setdefault(name, []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def list_assigned(node: ast.stmt) -> list[str]:
    """Return the names that a module-level statement defines: classes, types or values."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def test_a_module_has_a_name_of_its_own() -> None:
    """A module name means one thing everywhere, except for commands and public modules.

    Those are named as users call them.
    """
    ours = [path for path in SOURCES if path.stem not in ("__init__", "__main__")]
    ours = [
        path
        for path in ours
        if "commands" not in path.parts and path.parent.name not in ("penstock", "testing")
    ]
    stems = [path.stem for path in ours]
    assert sorted({stem for stem in stems if stems.count(stem) > 1}) == []


def count_files(paths: list[Path]) -> Counter[str]:
    return Counter(name_of(path.parent) for path in paths if path.stem != "__init__")


def test_no_room_holds_more_than_fifteen_files() -> None:
    rooms = count_files(SOURCES)
    assert {room: count for room, count in rooms.items() if count > MOST_FILES_IN_A_ROOM} == {}


def test_no_folder_of_tests_holds_more_than_twenty_files() -> None:
    folders = count_files(TESTS)
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES_OF_TESTS} == {}


def test_unit_tests_mirror_the_package() -> None:
    """The tests of a folder are found under the same path, and no test path outlives its folder."""
    unit = ROOT / "tests" / "unit"
    folders = {path.parent.relative_to(unit) for path in unit.rglob("*.py")}
    package = ROOT / "src" / "penstock"
    strange = [folder.as_posix() for folder in folders if not list((package / folder).glob("*.py"))]
    assert [folder for folder in sorted(strange) if folder.split("/")[0] not in NOT_OF_THE_PACKAGE] == []
