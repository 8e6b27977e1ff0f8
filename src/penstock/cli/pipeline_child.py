"""The pipeline beside a broker, from both ends: what `penstock serve --pipeline` starts, and what the
started process does first. server/pipeline_host.py keeps it running."""

import os
import sys
from pathlib import Path
from typing import Final

import typer

from penstock.server.flight.orphan import end_with_parent
from penstock.server.pipeline_host import PipelineChild
from penstock.spark.jvm.errors import CannotStart
from penstock.spark.pipeline.errors import NoProject, PipelineError

# The protocols go first, whenever both want the processor.
NICENESS: Final = 10


def pipeline_child(directory: Path) -> PipelineChild | None:
    """None, and one line that says why, where no pipeline can run here."""
    from penstock.spark.jvm.java import require_java
    from penstock.spark.pipeline.project import find_spec, load_project
    from penstock.spark.pipeline.session import require_pipelines
    from penstock.spark.pipeline.starter import write_project

    try:
        require_pipelines()
        require_java()
        try:
            find_spec(directory)
        except NoProject:
            write_project(directory, only_bronze=True)
            typer.echo(f"penstock: made a pipeline project in {directory}", err=True)
        tables = load_project(directory).tables_directory
    except (CannotStart, PipelineError) as error:
        typer.echo(f"penstock: the broker runs without a pipeline: {error}", err=True)
        return None

    def command(flight: str) -> list[str]:
        words = ["pipeline", "run", str(directory), "--continuous", "--json"]
        parent = ["--parent", str(os.getpid())]
        return [sys.executable, "-P", "-m", "penstock", *words, "--flight", flight, *parent]

    return PipelineChild(command, os.path.relpath(tables))


def be_child(parent: int) -> None:
    """Called by the process that was started: it ends when the broker does, however that happens, and steps
    back for it."""
    end_with_parent(parent)
    os.nice(NICENESS)
