"""One update of a pipeline: its files are read, its graph is given to Spark, its flows run to their end.

The same steps as those of `spark-pipelines run`, with what Spark tells on the way as values instead of
lines.
"""

import contextlib
import io
import re
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from penstock.errors import PenstockError
from penstock.spark.jvm.reasons import reason_of
from penstock.spark.pipeline.errors import BrokenProject, NoTable, UpdateFailed
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.running.definitions import Definitions, remembering
from penstock.spark.pipeline.selection import EVERYTHING, Selection
from penstock.spark.pipeline.tables.files import plain_names, table_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Flow `spark_catalog`.`default`.`bronze` has COMPLETED. / Flow spark_catalog.default.bronze is RUNNING.
_FLOW: Final = re.compile(r"^Flow '?(?P<flow>[\w.`-]+?)'? (?:is|has|was) (?P<state>[A-Z_]+)")
_NOT_FOUND: Final = "cannot be found"


@dataclass(slots=True)
class Update:
    """`flows`: the last state of each that Spark told. `notes`: what the building blocks had to say."""

    seconds: float = 0.0
    flows: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def run_update(
    spark: "SparkSession",
    project: Project,
    selection: Selection = EVERYTHING,
    told: Callable[[str], None] = lambda line: None,
    log: str = "",
    definitions: Definitions | None = None,
) -> Update:
    """Returns when all flows are done. `told` gets each line of Spark as it comes, `definitions` what the
    files of the project define. Raises UpdateFailed, BrokenProject, and the errors of the building
    blocks."""
    from pyspark.errors import PySparkException
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import (
        SparkConnectGraphElementRegistry,
    )
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

    from penstock.spark.pipeline.checkpoints.resuming import asked_for
    from penstock.spark.pipeline.notes import gathered_notes

    began_s = time.monotonic()
    update = Update()
    lines: list[str] = []
    try:
        spec = load_pipeline_spec(project.spec_path)
        graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
        try:
            with (
                gathered_notes(update.notes),
                asked_for(selection),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                registry = SparkConnectGraphElementRegistry(spark, graph)
                defined = Definitions() if definitions is None else definitions
                remembered = remembering(registry, defined)
                register_definitions(project.spec_path, remembered, spec, spark, graph)
            _require_tables(selection, defined, project)
            run = start_run(
                spark,
                graph,
                full_refresh=list(selection.full_refresh),
                full_refresh_all=selection.full_refresh_all,
                refresh=list(selection.refresh),
                dry=selection.dry,
                storage=spec.storage,
            )
            for line in _messages(run):
                lines.append(line)
                if (found := flow_state(line)) is not None:
                    update.flows[found[0]] = found[1]
                told(line)
        finally:
            _drop_graph(spark, graph)
    except PenstockError:
        raise
    except PySparkException as error:
        reason = reason_of([*lines, str(error)])
        if _NOT_FOUND in reason:  # a note says why a table is not there
            reason = "; ".join([reason, *update.notes])
        raise UpdateFailed(reason, log) from None
    except Exception as error:
        raise _broken(project, error) from None
    update.seconds = time.monotonic() - began_s
    return update


def _require_tables(selection: Selection, definitions: Definitions, project: Project) -> None:
    """Spark refreshes nothing, and says nothing, for a name that it does not know. Raises NoTable."""
    known = sorted({*definitions.tables, *table_names(project)})
    for name in (*selection.refresh, *selection.full_refresh):
        if plain_names([name])[0] not in known:
            shown = f"there are {', '.join(known)}" if known else "there is none yet"
            raise NoTable(name, shown)


def _messages(results: "Iterable[dict[str, Any]]") -> "Iterable[str]":
    for result in results:
        event = result.get("pipeline_event_result")
        if event is not None:
            yield event.event.message


def flow_state(line: str) -> tuple[str, str] | None:
    """Name and state of a flow, of a line of Spark that tells of one."""
    found = _FLOW.match(line)
    if found is None:
        return None
    return found["flow"].replace("`", "").rpartition(".")[2], found["state"]


def _drop_graph(spark: "SparkSession", graph: str) -> None:
    """Else the Connect server would keep the graphs of all updates of its session."""
    import pyspark.sql.connect.proto as pb2

    command = pb2.Command()
    command.pipeline_command.drop_dataflow_graph.CopyFrom(
        pb2.PipelineCommand.DropDataflowGraph(dataflow_graph_id=graph)
    )
    with contextlib.suppress(Exception):  # what it is dropped for is told already
        cast(Any, spark).client.execute_command(command)


def _broken(project: Project, error: Exception) -> PenstockError:
    """An error of the project's own Python: its place is the last line of a file of the project."""
    if isinstance(error, SyntaxError) and error.filename:
        return BrokenProject(_shown(error.filename), f"line {error.lineno}: {error.msg}")
    inside = str(project.directory)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(inside):
            text = f"line {frame.lineno}: {type(error).__name__}: {error}"
            return BrokenProject(_shown(frame.filename), text)
    return UpdateFailed(f"{type(error).__name__}: {error}", "")


def _shown(path: str) -> str:
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
