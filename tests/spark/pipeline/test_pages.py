"""The commands of the pages about pipelines, run one after the other in one project, as a reader types
them. What is not run here stands in NOT_RUN, with the reason and with what runs it instead."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from docs.markdown import ROOT, Block, Document
from docs.terminal import Terminal
from spark.pipeline.running_pipeline import make_quick

# In this order: each goes on with the project of the one before it.
PAGES = ("pipeline.md", "pipeline-gold.md", "spark-typed.md", "report.md")
PROJECT = "shop"

IN_MAKE = "make sets up an environment first; tests/server/test_pipeline_host.py has what follows"
A_SERVER = (
    "it goes on until a signal; tests/server/test_pipeline_host.py starts and stops such servers"
)
A_JVM = "a JVM of its own, half a minute"
NOT_RUN = {
    "make demo": "two minutes; tests/demo/test_running.py runs the command in make soak",
    "make run": IN_MAKE,
    'make run ARGS="--no-pipeline"': IN_MAKE,
    "penstock serve --pipeline my-pipeline": A_SERVER,
    "penstock pipeline backfill shop bronze": f"{A_JVM}; running/test_updates.py runs the command",
    "penstock pipeline backfill shop orders_silver": f"{A_JVM}; running/test_updates.py runs it",
    "pip install 'penstock[delta]' 'pyspark[connect,pipelines]==4.2.*'": (
        "another PySpark than that of the tests; tables/test_lakes.py has environments of its own"
    ),
    "penstock sub shop/devices/alerts": "it goes on until a signal; blocks/test_gold.py reads alerts",
    "penstock report": f"{A_JVM}; report/test_command.py runs the command",
    "penstock report --from -7d --topic 'orders.*' -o week.html": f"{A_JVM}; report/test_command.py",
    "penstock report --from 2026-01-31T12:00 --to 2026-01-31T13:00 --bucket 10s": (
        f"{A_JVM}, and ends with 4: there is no such traffic"
    ),
    "penstock report --from earliest --flight broker:8815 --master spark://host:7077": (
        "a cluster; test_elsewhere.py and test_whole_way.py have one"
    ),
}
# On the second page, with the files of examples/shop.
ANOTHER_UPDATE = ("pipeline-gold.md", "penstock pipeline run shop")
BY_GOLD = f"{A_JVM}; blocks/test_gold.py runs an update with the same files"


def lines_of(block: Block) -> list[str]:
    """Without comments; none of these lines has a # in quotes."""
    found = (line.partition("#")[0].strip() for line in block.text.splitlines())
    return [line for line in found if line]


def shell_lines() -> list[tuple[str, str]]:
    return [
        (name, line)
        for name in PAGES
        for block in Document(ROOT / "docs" / name).of("sh")
        for line in lines_of(block)
    ]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """In a directory as a clone has it, with a server and, when the page has made it, the project."""
    made = Terminal(tmp_path)
    (made.directory / "examples").symlink_to(ROOT / "examples")
    (definition,) = Document(ROOT / "docs" / "spark-typed.md").of("json")
    (made.directory / "basket.json").write_text(definition.text)
    made.start_server()
    yield made
    made.close()


def run(terminal: Terminal, line: str) -> None:
    """Whatever it says: it ends well."""
    terminal.console(Block(ROOT / "docs" / "pipeline.md", 0, "console", f"$ {line}\n...\n"))


def test_the_lines_that_are_not_run_are_on_the_pages() -> None:
    assert set(NOT_RUN) <= {line for _, line in shell_lines()}
    assert ANOTHER_UPDATE in shell_lines() and BY_GOLD


def test_the_commands_of_the_pages(terminal: Terminal) -> None:
    run(terminal, f"penstock pipeline init {PROJECT}")
    project = terminal.directory / PROJECT
    spec = project / "spark-pipeline.yml"
    spec.write_text(terminal.with_addresses(spec.read_text()))
    make_quick(project)
    for page, line in shell_lines():
        if line in NOT_RUN or (page, line) == ANOTHER_UPDATE:
            continue
        # There is a project already: a reader chooses one or the other.
        is_other = line.startswith(f"penstock pipeline init {PROJECT} ")
        run(terminal, f"(mkdir other && cd other && {line})" if is_other else line)
    tables = {one.name for one in (project / "tables").iterdir() if one.is_dir()}
    assert {"bronze", "orders_silver", "orders_dead_letters", "revenue_by_minute"} <= tables
    terminal.stop_server()
