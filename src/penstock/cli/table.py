"""`penstock table NAME`: the rows of a table of a pipeline that came last. Starts no JVM."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.output import print_json, print_table

if TYPE_CHECKING:  # at run time only the command imports these: `penstock --help` stays quick
    from penstock.spark.pipeline.project import Project

# Of a cell, in a table on a terminal.
SHOWN_CHARACTERS: Final = 40


def register(app: typer.Typer) -> None:
    app.command("table")(table)


def table(
    name: Annotated[str, typer.Argument(help="Name of the table.")],
    limit: Annotated[int, typer.Option("-n", "--limit", help="So many rows.", min=1)] = 20,
    project: Annotated[
        Path | None, typer.Option(help="Directory of the project; found if it is near.")
    ] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="Only these; may be given again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each row.")] = False,
) -> None:
    """Show the rows of a table that came last."""
    from penstock.spark.pipeline.tables.files import last_rows, table_directory

    found = last_rows(table_directory(_project(project, name), name), limit)
    shown = columns or found.column_names
    unknown = [column for column in shown if column not in found.column_names]
    if unknown:
        known = ", ".join(found.column_names)
        raise typer.BadParameter(f"--column {unknown[0]}: the columns are {known}")
    rows = found.select(shown).to_pylist()
    if as_json:
        for row in rows:
            print_json({column: _plain(value) for column, value in row.items()})
        return
    print_table([{c: _cell(v) for c, v in row.items()} for row in rows], shown, as_json=False)


def _project(given: Path | None, table: str) -> "Project":
    from penstock.spark.pipeline.tables.near import near_project

    return near_project(given, table)


def _plain(value: Any) -> Any:
    """Bytes that are UTF-8 as text, others in hexadecimal."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _cell(value: Any) -> Any:
    if isinstance(value, list | dict):
        import json

        value = json.dumps(_plain(value)) if value else ""
    text = _plain(value)
    if not isinstance(text, str):
        return text
    text = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."
