"""`penstock pipeline optimize`: many small files of a table become few large ones."""

from pathlib import Path
from typing import Annotated, Final

import typer

from penstock.cli.output import print_table

COLUMNS: Final = ("table", "files_before", "files_after", "bytes_before", "bytes_after", "note")


def optimize(
    directory: Annotated[Path, typer.Argument(help="Directory of the project.")],
    table: Annotated[str | None, typer.Argument(help="Only this table.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rewrite the small files of tables into files of the target size; a running pipeline waits."""
    from penstock.spark.pipeline.project import load_project
    from penstock.spark.pipeline.tables.files import table_directory, table_names
    from penstock.spark.pipeline.upkeep.optimizing import optimize_tables

    project = load_project(directory)
    names = table_names(project)
    if table is not None:
        names = [table_directory(project, table).name]
    rows = [
        {column: getattr(one, column) for column in COLUMNS}
        for one in optimize_tables(project, names, lambda text: typer.echo(text, err=True))
    ]
    if not rows and not as_json:
        typer.echo("no tables yet; penstock pipeline run makes them", err=True)
    print_table(rows, COLUMNS, as_json)
