"""`penstock pipeline backfill`: a table made anew from the log, beside the pipeline."""

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.environment import KEY_VARIABLE
from penstock.cli.output import print_json


def backfill(
    directory: Annotated[Path, typer.Argument(help="Directory of the project.")],
    tables: Annotated[list[str], typer.Argument(metavar="TABLE", help="Names of tables.")],
    master: Annotated[str | None, typer.Option(help="Master of a Spark cluster.")] = None,
    flight: Annotated[
        str | None, typer.Option(help="host:port of the broker's Flight listener.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Make tables anew from the log, in parallel, while the pipeline goes on with them."""
    from penstock.spark.pipeline.connecting import broker_of
    from penstock.spark.pipeline.project import load_project
    from penstock.spark.pipeline.repeating.backfill import backfill as run
    from penstock.spark.pipeline.running.run import Settings, configuration

    project = load_project(directory)
    key = KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else None
    settings = Settings(master=master, server=flight, key_variable=key)
    found = run(
        project,
        tables,
        broker_of(project, flight),
        configuration(project, settings),
        lambda text: typer.echo(text, err=True),
        master=master,
    )
    if as_json:
        print_json(
            [
                {
                    "table": one.table,
                    "rows_before": one.rows_before,
                    "rows": one.rows,
                    "files": one.files,
                    "waited_s": round(one.waited_s, 3),
                    "swap_s": round(one.swap_s, 3),
                }
                for one in found
            ]
        )
        return
    for one in found:
        typer.echo(
            f"{one.table}: {one.rows} rows in {one.files} files, {one.rows_before} rows before; "
            f"waited {one.waited_s:.1f} s for the pipeline, which waited {one.swap_s:.2f} s",
            err=True,
        )
