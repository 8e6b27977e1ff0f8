"""Every command and snippet of README.md and docs/ is run here, and every name in them is looked up.

```console   `$ ` commands with their output, run in order       ```output  what the snippet prints
```python    scripts, run as they stand                          ```toml    loaded as configuration
```sh        what cannot run here: names are checked             ```text    pictures

Commands of pipelines in ```sh blocks are run by tests/spark/pipeline/test_pages.py, in one project.
"""

import ast
import configparser
import re
import shlex
import shutil
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from docs.markdown import ROOT, Block, Document, documents, matches
from docs.terminal import Terminal

from penstock.cli.main import build_app
from penstock.server.banner import Facts, render, why_there
from penstock.server.config.checks import listening
from penstock.server.config.loading import load_config
from penstock.server.config.schema import KNOWN_KEYS
from penstock.server.http.app import STATUS
from penstock.server.http.calls import API_PREFIX, CALLS
from penstock.server.net.quic.certificates import CERTIFICATE_FILE
from penstock.server.net.quic.python_engine import PythonEngine

# py, sql: snippets for Spark, which tests/spark/ runs.
LANGUAGES = {"console", "python", "output", "toml", "sh", "text", "json", "py", "sql"}
# A page that is longer is two pages.
MAX_LINES = 250
# A directive: the server is started anew, with a file that the page has written.
WITH = "server with "
UNIT = ROOT / "packaging" / "penstock.service"
# Not every machine that runs the tests has one.
HAS_CURL = shutil.which("curl") is not None
SPARK_TOPIC = re.compile(r'(?:option\("(?:topic|subscribe)", |\b(?:topic|subscribe)=)"([\w-]+)"')

each_document = pytest.mark.parametrize("document", documents(), ids=lambda one: one.path.name)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    yield made
    made.close()


@each_document
def test_everything_in_it_runs(
    document: Document, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(map(needs_curl, document.blocks)) and not HAS_CURL:
        pytest.skip("there is no curl here")
    monkeypatch.chdir(terminal.directory)
    follow(document, terminal)
    terminal.stop_server()


def test_all_pages_run_on_one_server_as_the_readme_links_them(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(terminal.directory)
    readme = Document(ROOT / "README.md")
    pages = [Document(ROOT / name) for name in dict.fromkeys(readme.links()) if "docs/" in name]
    # Spark would take minutes; its pages run in tests/spark, and here their topics must be free.
    for page in (readme, *pages):
        follow(page, terminal)
    terminal.start_server()
    with urllib.request.urlopen(terminal.server.http + "/metrics/partitions") as answer:
        made = set(re.findall(r'topic="([^"]*)"', answer.read().decode()))
    spark = "".join(block.text for page in pages for block in page.of("py"))
    wanted = set(SPARK_TOPIC.findall(spark))
    assert {"demo", "orders", "news", "ledger"} <= made
    assert wanted and not wanted & made
    terminal.stop_server()


def needs_curl(block: Block) -> bool:
    return block.language == "console" and "$ curl " in block.text


def follow(document: Document, terminal: Terminal) -> None:
    """Do all that the page says. The server stays as the page leaves it."""
    for number, block in enumerate(document.blocks):
        if needs_curl(block) and not HAS_CURL:
            continue
        assert block.language in LANGUAGES, f"{block.place}: ```{block.language} is not checked"
        configs = [one.removeprefix(WITH) for one in block.directives if one.startswith(WITH)]
        if "server stopped" in block.directives:
            terminal.stop_server()
        elif configs:
            terminal.stop_server()
            terminal.start_server(configs[0])
        elif block.language in ("console", "python", "sh"):
            terminal.start_server()
        if block.language == "console":
            terminal.console(block)
        elif block.language == "python":
            following = document.blocks[number + 1 : number + 2]
            output = [one for one in following if one.language == "output"]
            terminal.python(block, output[0] if output else None)
        elif block.language == "toml":
            load_toml(block, terminal.directory)
        elif block.language == "sh":
            check_shell_lines(block, terminal)
    terminal.finish_open()


def load_toml(block: Block, directory: Path) -> None:
    path = directory / "block.toml"
    path.write_text(block.text)
    load_config(str(path), {}, {})


def check_shell_lines(block: Block, terminal: Terminal) -> None:
    """These cannot run in a test; but what they name has to be there."""
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if "make" in words:
            assert words[words.index("make") + 1] in make_targets(), f"{block.place}: {line}"
        if "penstock" in [Path(word).name for word in words[:2]]:
            first = [Path(word).name for word in words].index("penstock")
            check_command(words[first + 1 :], block.place)
        for word in words:
            if word.startswith("http://127.0.0.1:8080/"):
                with urllib.request.urlopen(terminal.with_addresses(word)) as answer:
                    assert answer.status == 200, word
            if word.endswith(".service") and "/" in word and not word.startswith("/"):
                assert (ROOT / word).is_file(), f"{block.place}: {line}"


# ---- the command line ---------------------------------------------------------------------------


def command_tree() -> dict[tuple[str, ...], set[str]]:
    """Every command by its words, with its options."""
    found: dict[tuple[str, ...], set[str]] = {}

    def walk(command: object, words: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children:
            for name, child in children.items():
                walk(child, (*words, name))
            return
        options = {name for one in command.params for name in one.opts}  # type: ignore[attr-defined]  # typer's own class
        found[words] = options | {"--help", "-h"}

    root = typer.main.get_command(build_app())
    walk(root, ())
    # `penstock --version` and the like: commands as a reader sees them, without options of their own.
    found.update({(name,): set[str]() | {name} for one in root.params for name in one.opts})
    return found


COMMANDS = command_tree()


def check_command(words: list[str], place: str) -> None:
    known = [path for path in COMMANDS if tuple(words[: len(path)]) == path]
    assert known, f"{place}: no command penstock {' '.join(words)}"
    for word in words:
        if word.startswith("--"):
            option = word.partition("=")[0]
            assert option in COMMANDS[known[0]], f"{place}: penstock {words[0]} has no {option}"


def test_the_page_of_the_command_line_names_every_command() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    # `list` is said once, of all that have `ls`.
    shown = [path for path in COMMANDS if path[-1] != "list"]
    missing = [" ".join(path) for path in shown if f"penstock {' '.join(path)}" not in text]
    assert missing == []


@each_document
def test_commands_and_settings_in_the_text_exist(document: Document) -> None:
    sections = {name.partition(".")[0] for name in KNOWN_KEYS}
    for word in document.code_words():
        if word.startswith("penstock "):
            check_command(shlex.split(word)[1:], document.path.name)
        elif word.startswith("make "):
            assert word.split()[1] in make_targets(), word
        elif re.fullmatch(r"[a-z_]+\.[a-z_]+", word) and word.partition(".")[0] in sections:
            assert word in KNOWN_KEYS, f"{document.path.name}: no setting {word}"


# ---- files, targets, names ----------------------------------------------------------------------


def imported(block: Block) -> set[str]:
    """The packages, by the first word of their names."""
    found = set()
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.Import):
            found |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


@each_document
def test_what_a_snippet_imports_is_installed_or_the_page_says_how(document: Document) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]}
    installed |= {"penstock", *sys.stdlib_module_names}
    commands = re.findall(r"pip install ([^`\n]+)", document.path.read_text())
    named = {re.split(r"[^\w-]", word)[0] for line in commands for word in shlex.split(line)}
    for block in document.of("python"):
        assert imported(block) <= installed | named, block.place


def make_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def test_the_makefile_shows_options_that_exist() -> None:
    shown = re.findall(r'make run ARGS="([^"]+)"', (ROOT / "Makefile").read_text())
    assert shown
    for arguments in shown:
        check_command(["serve", *shlex.split(arguments)], "Makefile")


OTHERS = [Document(ROOT / name) for name in ("CONTRIBUTING.md", "CHANGELOG.md", "ARCHITECTURE.md")]


@pytest.mark.parametrize("document", [*documents(), *OTHERS], ids=lambda one: one.path.name)
def test_what_it_points_to_is_there(document: Document) -> None:
    for target in document.links():
        assert (document.path.parent / target).exists(), f"{document.path.name}: {target}"
    text = document.path.read_text()
    for path in re.findall(
        r"(?<![\w/.<])(?:src|tests|docs|tools|packaging|benchmarks)/[\w/.-]*\w", text
    ):
        assert (ROOT / path).exists(), f"{document.path.name}: {path}"
    for target in re.findall(r"^make ([a-z-]+)|`make ([a-z-]+)", text, re.MULTILINE):
        assert "".join(target) in make_targets(), f"{document.path.name}: make {target}"
    assert len(text.splitlines()) < MAX_LINES


def test_every_page_can_be_found_from_the_readme() -> None:
    linked = Document(ROOT / "README.md").links()
    assert [
        one.name for one in (ROOT / "docs").glob("*.md") if f"docs/{one.name}" not in linked
    ] == []


def test_the_banner_in_the_readme_is_that_of_a_bare_start() -> None:
    """By `make run`, which puts nothing on the PATH."""
    loaded = load_config(None, {}, {})
    source = loaded.sources["server.data_directory"]
    facts = Facts(
        listening=list(listening(loaded.config).items()),
        data_directory=loaded.config.server.data_directory,
        data_source=why_there(source.kind, str(source)),
        keys="development",
        without_login={"rustlog": "no topic"},
        command=".venv/bin/penstock",
        quic_engine=PythonEngine.name,
        # Each server has another one.
        quic_trust=f"{CERTIFICATE_FILE} in the data directory, SHA-256 ...",
    )
    (shown,) = Document(ROOT / "README.md").of("text")
    assert shown.text.splitlines() == render(facts).splitlines()


def test_the_table_of_metrics_is_complete(terminal: Terminal) -> None:
    terminal.start_server()
    found = set()
    for path in ("/metrics", "/metrics/partitions"):
        with urllib.request.urlopen(terminal.server.http + path) as answer:
            found |= set(re.findall(r"^# TYPE (\S+)", answer.read().decode(), re.MULTILINE))
    table = (ROOT / "docs" / "metrics.md").read_text()
    # A row may describe two that belong together, such as a gauge and its limit.
    rows = re.findall(r"^\| (`penstock_\w+`(?:, `penstock_\w+`)*) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == found
    terminal.stop_server()


def test_the_page_of_http_has_every_call_and_status() -> None:
    page = (ROOT / "docs" / "http.md").read_text()
    calls = {
        f"{method} /{path.replace('{name}', 'NAME')}"
        for path, methods in CALLS.items()
        for method in methods
    }
    assert set(re.findall(r"^\| `([A-Z]+ /\S+)` \|", page, re.MULTILINE)) == calls
    assert f"`{API_PREFIX.rstrip('/')}`" in page
    rows = dict(re.findall(r"^\| ([45]\d\d) \| (.*) \|$", page, re.MULTILINE))
    assert [
        code.name for code, status in STATUS.items() if f"`{code.name}`" not in rows[str(status)]
    ] == []


def test_the_unit_starts_what_there_is() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep case
    unit.read(UNIT)
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    words = shlex.split(service["ExecStart"])
    assert Path(words[0]).name == "penstock"
    check_command(words[1:], UNIT.name)
    drain_s = load_config(None, {}, {}).config.server.drain_time_us / 1_000_000
    assert float(service["TimeoutStopSec"]) > drain_s


# ---- the reader of documents itself -------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "output", "fits"),
    [
        ((), "", True),
        ((), "x\n", False),
        (("a",), "a\n", True),
        (("a",), "a\nb\n", False),
        (("a",), "b\n", False),
        (("a...c",), "abbbc\n", True),
        (("a...c",), "abbb\nc\n", False),
        (("a", "...", "z"), "a\nb\nc\nz\n", True),
        (("a", "...", "z"), "a\nz\n", True),
        (("a", "...", "z"), "a\nb\n", False),
        (("a.c",), "abc\n", False),
        (("a   c",), "a  c\n", True),
        (("a  c",), "a c\n", False),
    ],
)
def test_how_output_is_compared(expected: tuple[str, ...], output: str, fits: bool) -> None:
    assert matches(expected, output) is fits


@pytest.mark.parametrize(
    ("console", "complaint"),
    [
        ("$ echo one\ntwo\n", "one"),
        ("$ false\n", "exit code 1"),
        ("$ penstock cat no-such-topic\n", "no topic named"),
    ],
)
def test_a_document_that_is_wrong_is_found(
    terminal: Terminal, tmp_path: Path, console: str, complaint: str
) -> None:
    terminal.start_server()
    block = Block(ROOT / "README.md", 1, "console", console)
    with pytest.raises(AssertionError, match=complaint):
        terminal.console(block)
