"""How far the flows of a project have come, as their checkpoints say. Reads files only.

_checkpoints/<catalog>/<database>/<table>/<flow>/<number>/    a full refresh begins the next number
_checkpoints/<sink>/<flow>/<number>/
    metadata          the id of the query
    offsets/<batch>   where the batch ends, for each source: written before it runs
    commits/<batch>   the batch is done
    sources/<n>/      of a source that reads a table: the files that it has read
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.spark.pipeline.project import Project
from penstock.spark.progress import NotOurOffset, Progress

# In a file of offsets the first lines are the version and what Spark notes of the batch; then one for
# each source.
SOURCES: Final = 2


@dataclass(frozen=True, slots=True)
class Landed:
    """What of the log is in a table. `query`: the id of the streaming query, which a full refresh
    changes. `planned`: where the batch ends that may be under way. `began`: where the first one began, as
    long as Spark keeps that."""

    flow: Path
    query: str
    batch: int
    progress: Progress
    planned: Progress
    began: Progress | None = None


def landed(project: Project, table: str, batch: int | None) -> Landed | None:
    """`batch`: the last one that the log of the table has, None for a table without such a log. None
    where no batch is done, where it does not read topics, or several flows fill it.

    The table's log decides: Spark notes a batch as done a moment later.
    """
    flows = flow_directories(project, table)
    if len(flows) != 1:
        return None
    flow = flows[0]
    last = max(batches(flow / "commits"), default=None) if batch is None else batch
    progress = None if last is None else progress_at(flow, last)
    if last is None or progress is None:
        return None
    first = progress_at(flow, 0)
    began = None
    if first is not None and first.began is not None:
        began = Progress(first.query, first.began)
    query = json.loads((flow / "metadata").read_text())["id"]
    # Of a table without such a log it is not known whether that batch is in it.
    planned = None if batch is not None else progress_at(flow, batches(flow / "offsets")[-1])
    return Landed(flow, query, last, progress, planned or progress, began)


def flow_directories(project: Project, table: str) -> list[Path]:
    """Of each flow into the table, the checkpoint of its last full refresh."""
    root = project.checkpoints_directory
    parents = sorted([*root.glob(f"*/*/{table}/*"), *root.glob(f"{table}/*")])
    return [found for parent in parents if (found := _last_refresh(parent)) is not None]


def flow_checkpoints(project: Project) -> Iterator[tuple[str, Path]]:
    """Of all flows that have begun, of tables and of sinks, by the name of the flow."""
    root = project.checkpoints_directory
    for parent in sorted([*root.glob("*/*/*/*"), *root.glob("*/*")]):
        last = _last_refresh(parent)
        if last is not None and (last / "offsets").is_dir():
            yield parent.name, last


def read_topics(project: Project) -> Iterator[tuple[str, list[Progress]]]:
    """Of each flow that reads topics, by its name: where its last batch ended."""
    for name, checkpoint in flow_checkpoints(project):
        lines = last_lines(checkpoint, "commits")[SOURCES:]
        found = [one for line in lines if (one := _progress(line)) is not None]
        if found:
            yield name, found


def last_lines(checkpoint: Path, of: str) -> list[str]:
    """The lines of the offsets of the last batch that has begun (`of` offsets), or that is done
    (`of` commits)."""
    numbers = batches(checkpoint / of)
    try:
        path = checkpoint / "offsets" / str(max(numbers, default=0))
        return path.read_text("utf-8").splitlines() if numbers else []
    except FileNotFoundError:
        return []


def _last_refresh(flow: Path) -> Path | None:
    numbers = [one for one in _entries(flow) if one.name.isdigit()]
    return max(numbers, key=lambda one: int(one.name), default=None)


def batches(directory: Path) -> list[int]:
    return sorted(int(one.name) for one in _entries(directory) if one.name.isdigit())


def progress_at(flow: Path, batch: int) -> Progress | None:
    """Where a batch ends. None where it is not told any more, or it reads something else than topics."""
    path = flow / "offsets" / str(batch)
    if not path.is_file():
        return None
    sources = path.read_text(encoding="utf-8").splitlines()[SOURCES:]
    return _progress(sources[0]) if len(sources) == 1 else None


def _progress(line: str) -> Progress | None:
    """None for a source that reads no topics."""
    try:
        return Progress.from_json(json.loads(line))
    except (ValueError, NotOurOffset):
        return None


def _entries(directory: Path) -> list[Path]:
    """None where there is no such directory: Spark may remove it while we look."""
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
