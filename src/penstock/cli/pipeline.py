"""`penstock pipeline`: data pipelines on Spark, from topics to tables."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.environment import KEY_VARIABLE
from penstock.cli.output import moment, print_json, print_table
from penstock.cli.pipeline_backfill import backfill
from penstock.cli.pipeline_check import check
from penstock.cli.pipeline_optimize import optimize
from penstock.cli.pipeline_replay import replay
from penstock.cli.pipeline_view import PipelineView

if TYPE_CHECKING:  # at run time only the commands import these: `penstock --help` stays quick
    from penstock.spark.pipeline.project import Project

Directory = Annotated[Path, typer.Argument(help="Directory of the project.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FLIGHT_HELP = "host:port of the broker's Flight listener, instead of that of the project."
COLUMNS = ("table", "rows", "files", "bytes", "changed")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Data pipelines on Spark: from topics to tables.", no_args_is_help=True
    )
    group.command("init")(init)
    group.command("run")(run)
    group.command("show")(show)
    group.command("check")(check)
    group.command("optimize")(optimize)
    group.command("replay")(replay)
    group.command("backfill")(backfill)
    app.add_typer(group, name="pipeline")


def init(
    directory: Directory,
    table_format: Annotated[
        str, typer.Option("--format", help="Of its tables: parquet, delta or iceberg.")
    ] = "parquet",
) -> None:
    """Write a project that runs as it is."""
    from penstock.spark.pipeline.project import TABLE_FORMATS
    from penstock.spark.pipeline.starter import write_project

    if table_format not in TABLE_FORMATS:
        raise typer.BadParameter(f"--format {table_format}: there are {', '.join(TABLE_FORMATS)}")
    for path in write_project(directory, table_format=table_format):
        typer.echo(f"  {directory / path}", err=True)
    typer.echo(f"run it: penstock pipeline run {directory}", err=True)


def run(
    directory: Directory,
    refresh: Annotated[
        list[str] | None, typer.Option(help="Only these tables; may be given again.")
    ] = None,
    full_refresh: Annotated[
        list[str] | None, typer.Option(help="Empty these tables and fill them anew.")
    ] = None,
    full_refresh_all: Annotated[
        bool, typer.Option("--full-refresh-all", help="Fill all tables anew.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look whether it could run; change nothing.")
    ] = False,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Update after update, until a signal.")
    ] = False,
    interval: Annotated[
        float, typer.Option(help="Seconds from one update to the next.", min=0.0)
    ] = 1.0,
    master: Annotated[str | None, typer.Option(help="Master of a Spark cluster.")] = None,
    remote: Annotated[str | None, typer.Option(help="A Spark Connect server, sc://...")] = None,
    flight: Annotated[str | None, typer.Option(help=FLIGHT_HELP)] = None,
    as_json: AsJson = False,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Bring the tables of a project up to date: one update, as spark-pipelines run does it."""
    from penstock.spark.pipeline.running.run import Settings, run_pipeline
    from penstock.spark.pipeline.selection import Selection

    if parent is not None:
        from penstock.cli.pipeline_child import be_child

        be_child(parent)
    if full_refresh_all and (refresh or full_refresh):
        raise typer.BadParameter("--full-refresh-all is all tables; leave the others out")
    if master is not None and remote is not None:
        raise typer.BadParameter("give one of --master and --remote, not both")
    if continuous and (dry_run or full_refresh_all or refresh or full_refresh):
        raise typer.BadParameter("--continuous brings all tables up to date; leave the others out")
    project = _project(directory)
    selection = Selection(
        tuple(refresh or ()), tuple(full_refresh or ()), full_refresh_all, dry_run
    )
    settings = Settings(
        selection=selection,
        master=master,
        remote=remote,
        server=flight,
        key_variable=KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else None,
        continuous=continuous,
        interval_s=interval,
        as_json=as_json,
    )
    view = PipelineView(drawn=not (as_json or dry_run))
    run_pipeline(project, settings, say=view.say, report=print_json, showing=view.showing)


def show(directory: Directory, as_json: AsJson = False) -> None:
    """Show the tables of a project: rows, sizes, and when they changed last."""
    from penstock.spark.pipeline.tables.files import facts, table_directory, table_names

    project = _project(directory)
    found = [facts(name, table_directory(project, name)) for name in table_names(project)]
    rows = [
        {
            "table": one.name,
            "rows": one.rows,
            "files": one.files,
            "bytes": one.size_bytes,
            "changed": None if one.changed_ms is None else moment(one.changed_ms * 1000),
        }
        for one in found
    ]
    if not rows and not as_json:
        typer.echo("no tables yet; penstock pipeline run makes them", err=True)
    print_table(rows, COLUMNS, as_json)


def _project(directory: Path) -> "Project":
    from penstock.spark.pipeline.project import load_project

    return load_project(directory)
