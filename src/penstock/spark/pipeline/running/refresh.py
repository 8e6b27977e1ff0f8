"""A full refresh empties tables before Spark fills them anew.

Spark forgets how far the flows of such a table have come, and truncates it: but of a partitioned table
it leaves the files and their log, and its file sink takes the first batches of the new run for ones that
it has already written. So the files are removed here, first; Delta Lake and Iceberg empty theirs. A note
says which tables are on their way: when this process or its machine stops in between, the next update
refreshes them again.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from penstock.spark.pipeline.project import PARQUET, Project
from penstock.spark.pipeline.selection import Selection
from penstock.spark.pipeline.tables.files import plain_names, table_names
from penstock.spark.pipeline.tables.lakes import format_of


@contextmanager
def emptied(project: Project, selection: Selection) -> Iterator[Selection]:
    """What to ask Spark for: the selection, and what an earlier refresh did not finish."""
    if selection.dry:
        yield selection
        return
    note = project.own_directory / "full-refresh.json"
    unfinished: list[str] = json.loads(note.read_text()) if note.is_file() else []
    there = table_names(project)
    wanted = there if selection.full_refresh_all else plain_names(selection.full_refresh)
    # A name that is no table is told by the update.
    tables = sorted({*unfinished, *(table for table in wanted if table in there)})
    if tables:
        note.write_text(json.dumps(tables))
    for table in tables:
        if table in there and format_of(project.tables_directory / table) == PARQUET:
            shutil.rmtree(project.tables_directory / table)
            (project.tables_directory / table).mkdir()
    if unfinished and not selection.full_refresh_all:
        named = {*plain_names(selection.full_refresh)}
        more = [table for table in unfinished if table not in named]
        yield replace(selection, full_refresh=(*selection.full_refresh, *more))
    else:
        yield selection
    note.unlink(missing_ok=True)
