"""The house rules, as tests. Each rule is a function from a text to the places that break it.

What ruff, mypy and import-linter can check is theirs; see make lint.
"""

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kit.limits import HANG_S

from penstock._build import hot_modules

ROOT = Path(__file__).resolve().parent.parent
CODE_DIRECTORIES = ("src", "tests", "tools", "benchmarks", "examples")
# Never ours, wherever the tree came from.
SKIPPED = frozenset(
    {".git", ".venv", "build", "dist", "penstock-data", "__pycache__", ".hypothesis"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache"}
)
# A reader should hold a file in the head. 400 is the aim, and past 600 it is two files.
MAX_LINES = 600
# Each protocol has a package of its own among those that know bytes.
PROTOCOLS = tuple(path.parent.name for path in (ROOT / "src/penstock/wire").glob("*/__init__.py"))

# Put together here, because no file may name a host of a registry, and this is a file.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("static", "crates", "io"),
        ("index", "crates", "io"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("proxy", "golang", "org"),
        ("maven", "apache", "org"),
        ("maven", "org"),
        ("deb", "debian", "org"),
        ("artifact" + "registry", "googleapis", "com"),
        ("pkg", "dev"),
    )
)
NAMES_A_REGISTRY = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, REGISTRY_HOSTS))})(?![\w-])")
# Calls whose first argument is how many seconds they wait at most.
WAITING = frozenset({"wait", "join", "result", "timeout", "settimeout", "awaitTermination"})
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")


def tracked_files() -> list[Path]:
    """What belongs to the project: as git sees it, or all of the tree where git does not answer."""
    names: list[str] = []
    if shutil.which("git") and (ROOT / ".git").exists():
        command = ["git", "-C", str(ROOT), "ls-files", "-z", "-co", "--exclude-standard"]
        done = subprocess.run(command, check=False, capture_output=True)
        names = [name for name in done.stdout.decode().split("\0") if name]
    found = [ROOT / name for name in names] or list(ROOT.rglob("*"))
    ours = [path for path in found if not SKIPPED.intersection(path.relative_to(ROOT).parts)]
    return sorted(path for path in ours if path.is_file())


def code_files() -> list[Path]:
    return [
        path
        for path in tracked_files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in CODE_DIRECTORIES
    ]


def files_under(directory: str) -> list[Path]:
    return [path for path in code_files() if path.is_relative_to(ROOT / directory)]


# The rules


def too_long(text: str) -> Iterator[str]:
    count = len(text.splitlines())
    if count > MAX_LINES:
        yield f"{count} lines, {MAX_LINES} at most: split it"


def without_docstring(text: str) -> Iterator[str]:
    if not ast.get_docstring(ast.parse(text)):
        yield "the first lines must say what the module is for and what it does not do"


def unfinished(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"line {number}: finish it, or leave it out"


def naming_a_registry(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        if NAMES_A_REGISTRY.search(line):
            yield f"line {number}: names a registry's host"


def sleeping(text: str) -> Iterator[str]:
    """Calls of time.sleep, and of asyncio.sleep with anything but a literal 0 (a mere yield)."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "asyncio"):
            if any(alias.name == "sleep" for alias in node.names):
                yield f"line {node.lineno}: imports sleep by name"
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            pausing = called in ("time.sleep", "asyncio.sleep")
            if pausing and ast.unparse(node) != "asyncio.sleep(0)":
                yield f"line {node.lineno}: wait for an event instead of sleeping"


def measuring(text: str) -> Iterator[str]:
    """Time limits in numbers, of seconds below the one of kit/limits.py: they fail on a slow machine.

    Part of a second is a wait for something that must not come, and a slow machine cannot break it.
    """
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        given = [one.value for one in node.keywords if one.arg == "timeout"]
        if name in WAITING:
            given += node.args[:1]
        for one in given:
            seconds = one.value if isinstance(one, ast.Constant) else None
            if isinstance(seconds, int | float) and 1 < seconds < HANG_S:
                yield f"line {one.lineno}: a limit of {seconds} s, use kit.limits.HANG_S"


def imported_modules(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def protocol_of(module: str) -> str | None:
    """The protocol that a module of ours belongs to: penstock.<room>.<protocol>[_part]..."""
    _, _, name = [*module.split("."), "", ""][:3]
    return next((p for p in PROTOCOLS if name == p or name.startswith(f"{p}_")), None)


def mixing_protocols(module: str, text: str) -> Iterator[str]:
    mine = protocol_of(module)
    for line, imported in imported_modules(text):
        if not imported.startswith("penstock."):
            continue
        other = protocol_of(imported)
        if mine is not None and other not in (None, mine):
            yield f"line {line}: {mine} imports {imported}"


# The rules on our files


def broken(rule: Callable[[str], Iterator[str]], paths: list[Path]) -> list[str]:
    assert paths, "the rule looked at no file"
    found: list[str] = []
    for path in paths:
        text = path.read_bytes().decode(errors="replace")
        found.extend(f"{path.relative_to(ROOT)}: {place}" for place in rule(text))
    return found


def test_no_file_is_too_long() -> None:
    assert broken(too_long, code_files()) == []


def test_every_module_says_what_it_is_for() -> None:
    assert broken(without_docstring, files_under("src")) == []


def test_nothing_is_left_unfinished() -> None:
    assert broken(unfinished, [*code_files(), ROOT / "Makefile"]) == []


def test_no_file_names_a_registry() -> None:
    assert broken(naming_a_registry, tracked_files()) == []


def test_no_test_sleeps() -> None:
    assert broken(sleeping, files_under("tests")) == []


def test_no_test_measures_the_machine() -> None:
    assert broken(measuring, files_under("tests")) == []


def test_no_protocol_imports_another() -> None:
    found: list[str] = []
    for path in files_under("src"):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        found.extend(mixing_protocols(module, path.read_text()))
    assert found == []


def test_every_hot_module_is_there_once() -> None:
    modules = hot_modules()
    assert len(set(modules)) == len(modules)
    for module in modules:
        assert (ROOT / "src" / f"{module.replace('.', '/')}.py").is_file(), module


def test_the_tests_of_hot_modules_are_there() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        patterns = tomllib.load(file)["tool"]["penstock"]["pure-tests"]
    assert [pattern for pattern in patterns if not any(ROOT.glob(pattern))] == []


def test_pins_are_plain() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.+!]+", pin)] == []


# The rules can find what they look for


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (too_long, "x = 1\n" * (MAX_LINES + 1)),
        (without_docstring, "x = 1\n"),
        (unfinished, "# TO" + "DO: later\n"),
        (naming_a_registry, f"see https://{REGISTRY_HOSTS[0]}/simple\n"),
        (naming_a_registry, f"see files.{REGISTRY_HOSTS[1]}\n"),
        (sleeping, "import time\ntime.sleep(1)\n"),
        (sleeping, "from time import sleep\n"),
        (sleeping, "async def f():\n    await asyncio.sleep(0.1)\n"),
        (measuring, "done.wait(20)\n"),
        (measuring, "run(command, timeout=50.0)\n"),
        (measuring, "@pytest.mark.timeout(60)\ndef test(): ...\n"),
    ],
)
def test_a_rule_finds_a_breach(rule: Callable[[str], Iterator[str]], text: str) -> None:
    assert len(list(rule(text))) == 1


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (too_long, "x = 1\n" * MAX_LINES),
        (without_docstring, '"""Adds."""\n'),
        (unfinished, "# TO" + "DOS is a word\n"),
        (naming_a_registry, "not-" + REGISTRY_HOSTS[0] + "\n"),
        (sleeping, "async def f():\n    await asyncio.sleep(0)\n"),
        (measuring, "done.wait(HANG_S)\nassert not done.wait(0.1)\n"),
        (measuring, "@pytest.mark.timeout(1800)\ndef test(): ...\n"),
    ],
)
def test_a_rule_leaves_good_text_alone(rule: Callable[[str], Iterator[str]], text: str) -> None:
    assert list(rule(text)) == []


@pytest.mark.parametrize(
    ("module", "line", "breaches"),
    [
        ("penstock.sessions.blipmq.session", "from penstock.wire import rustlog", 1),
        ("penstock.sessions.blipmq.session", "from penstock.wire.rustlog.binary import decode", 1),
        ("penstock.client.rustlog", "import penstock.wire.blipmq", 1),
        ("penstock.sessions.blipmq.session", "from penstock.wire import blipmq", 0),
        ("penstock.wire.rustlog.frames", "from penstock.wire.rustlog.binary import decode", 0),
        ("penstock.server.net.sniff", "from penstock.wire import rustlog", 0),
    ],
)
def test_mixed_protocols_are_found(module: str, line: str, breaches: int) -> None:
    assert len(list(mixing_protocols(module, line))) == breaches
