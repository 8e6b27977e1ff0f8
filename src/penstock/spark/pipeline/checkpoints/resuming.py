"""A bronze flow whose checkpoint is gone goes on behind the records that its table holds.

The checkpoint is written anew, as Spark would have written it after the last batch of the table. That is
more than an option that says where to start: Spark's file sink keeps a log of batches and skips those it
has, so that a flow that counts from 0 again would lose what its first batches read, without a word.

    <flow>/<number>/metadata        the id of the query: a new one
    <flow>/<number>/offsets/<n>     where batch n ends; Spark also asks for the one before the last
    <flow>/<number>/commits/<n>     batch n is done

Files of this machine only: of a table or a checkpoint elsewhere nothing is seen here.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.spark.options import read_options
from penstock.spark.pipeline.checkpoints.landed import Offsets, landed_offsets
from penstock.spark.pipeline.connecting import broker, connection_options
from penstock.spark.pipeline.errors import LostCheckpoint, NoProject
from penstock.spark.pipeline.notes import note
from penstock.spark.pipeline.project import PARQUET, Project, load_project
from penstock.spark.pipeline.selection import Selection
from penstock.spark.pipeline.tables.files import last_batch, plain_names, table_files
from penstock.spark.pipeline.tables.lakes import format_of
from penstock.spark.positions import States, look
from penstock.spark.progress import Progress, TopicProgress

# Of both logs of a checkpoint, in all versions of Spark that have pipelines.
VERSION: Final = "v1"
_asked: list[Selection] = []


@contextmanager
def asked_for(selection: Selection) -> Iterator[None]:
    """What the update is for whose files are read meanwhile. Spark's own command does not tell."""
    _asked.append(selection)
    try:
        yield
    finally:
        _asked.pop()


def go_on(table: str, options: Mapping[str, str]) -> None:
    """`options`: those of the source that fills the table. Called while the files of a project are read,
    which happens in its directory."""
    project = _project_here()
    if project is None or any(one.dry for one in _asked):
        return
    directory = project.tables_directory / table.lower()
    # Delta Lake and Iceberg go by the id of the query, which is a new one: any number will do.
    batch = last_batch(directory) if format_of(directory) == PARQUET else 0
    if batch is None or not is_empty(project, table):
        return
    given = read_options({**connection_options(), **options}, streaming=True)
    states = broker().call(lambda client: look(client, given.selection, missing_ok=True))
    made_us = {topic: one.created_us for topic, one in states.items()}
    landed = landed_offsets((one.path for one in table_files(directory)), made_us)
    write_checkpoint(checkpoint(project, table), batch, _progress(landed, states))
    count = sum(len(one) for one in landed.values())
    note(f"{table}: its checkpoint was gone; goes on behind its last rows of {count} partitions")


def require_checkpoint(table: str) -> None:
    """For a table whose rows do not tell how far it has come: what was left out is not in it. Raises
    LostCheckpoint instead of letting Spark skip its first batches, or read them again."""
    project = _project_here()
    if project is None or _is_refreshed(table):
        return
    directory = project.tables_directory / table.lower()
    if _has_landed(directory) and is_empty(project, table):
        raise LostCheckpoint(table.lower(), str(project.directory))


def _has_landed(directory: Path) -> bool:
    if format_of(directory) == PARQUET:
        return last_batch(directory) is not None
    return bool(table_files(directory))


def _is_refreshed(table: str) -> bool:
    """It will be empty before it is filled."""
    return any(
        one.full_refresh_all or table.lower() in plain_names(one.full_refresh) for one in _asked
    )


def _project_here() -> Project | None:
    try:
        return load_project(Path.cwd())
    except NoProject:  # another name was given to Spark's own command
        return None


def _progress(landed: Offsets, states: States) -> Progress:
    """A partition of which nothing is left in the table begins with its earliest record."""
    topics = {}
    for topic, ends in landed.items():
        state = states[topic]
        positions = {one: ends.get(one, first) for one, first in state.earliest.items()}
        topics[topic] = TopicProgress(state.created_us, positions)
    return Progress(uuid.uuid4().hex[:12], topics)


# --- checkpoints as files --------------------------------------------------------------------------


def checkpoint(project: Project, table: str) -> Path:
    """That of the flow that has the name of its table: the one of the last full refresh."""
    name = table.lower()
    found = project.checkpoints_directory / project.catalog / project.schema / name / name
    numbers = [int(one.name) for one in found.glob("*") if one.name.isdigit()]
    return found / str(max(numbers, default=0))


def is_empty(project: Project, table: str) -> bool:
    offsets = checkpoint(project, table) / "offsets"
    return not any(one.name.isdigit() for one in offsets.glob("*"))


def write_checkpoint(directory: Path, batch: int, progress: Progress) -> None:
    """That of a query that has done so many batches and is there. It appears as a whole."""
    new = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}")
    facts = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": {}}
    where = json.dumps(progress.to_json())
    for number in {max(0, batch - 1), batch}:
        _write(new / "offsets" / str(number), f"{VERSION}\n{json.dumps(facts)}\n{where}")
        _write(new / "commits" / str(number), f'{VERSION}\n{{"nextBatchWatermarkMs":0}}')
    _write(new / "metadata", json.dumps({"id": str(uuid.uuid4())}))
    # What is left of a checkpoint without offsets says nothing, and would contradict this one.
    shutil.rmtree(directory, ignore_errors=True)
    new.rename(directory)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
