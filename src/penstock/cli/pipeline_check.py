"""`penstock pipeline check`: compares tables and log, and names the first gap or double. Starts no JVM."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import print_table

if TYPE_CHECKING:  # at run time only the command imports these: `penstock --help` stays quick
    from penstock.spark.pipeline.checking.reconcile import Checked

COLUMNS: Final = ("table", "rows", "records", "behind", "left_out", "result")


def check(
    directory: Annotated[Path, typer.Argument(help="Directory of the project.")],
    table: Annotated[
        list[str] | None, typer.Option(help="Only this table; may be given again.")
    ] = None,
    flight: Annotated[
        str | None, typer.Option(help="host:port of the broker's Flight listener.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare the tables of a project with the log, and name the first gap or double."""
    from penstock.spark.pipeline.checking.problems import CheckFailed
    from penstock.spark.pipeline.checking.reconcile import check_tables
    from penstock.spark.pipeline.connecting import broker_of
    from penstock.spark.pipeline.project import load_project
    from penstock.spark.pipeline.tables.files import table_directory, table_names

    project = load_project(directory)
    names = table_names(project)
    if table:
        names = [table_directory(project, one).name for one in table]
    found = list(check_tables(project, broker_of(project, flight), names))
    if not found and not as_json:
        typer.echo("no tables yet; penstock pipeline run makes them", err=True)
    print_table([_row(one, as_json) for one in found], COLUMNS, as_json)
    problems = [one.problem for one in found if one.problem is not None]
    if problems:
        raise CheckFailed(problems[0])


def _row(one: "Checked", as_json: bool) -> dict[str, Any]:
    row = {
        "table": one.table,
        "rows": one.rows,
        "records": one.records,
        "behind": one.behind,
        "left_out": one.left_out,
        "result": _result(one),
    }
    if as_json and one.problem is not None:
        problem = one.problem
        row["problem"] = {
            "kind": str(problem.kind),
            "topic": problem.topic,
            "partition": problem.partition,
            "offset": problem.offset,
            "count": problem.count,
        }
    return row


def _result(one: "Checked") -> str:
    if one.problem is not None:
        return str(one.problem.kind)
    if one.records is None:
        return f"not compared: {one.note}"
    others = one.left_out - one.marks
    parts = [f"{one.marks} deletion marks"] if one.marks else []
    parts += [f"{others} by a rule or as duplicates, not told apart"] if others else []
    left = f"complete, left out: {', '.join(parts)}" if parts else "complete"
    return f"{left}; {one.note}" if one.note else left
