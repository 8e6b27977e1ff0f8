"""Files of a Parquet table replaced by others with the same rows, so that whoever reads through the log
of the table sees each record once, at every moment.

    1. a note says which files are to come, and which are to go
    2. the new files are written
    3. flows of the project that read the table as a stream are told that they have read the new files
    4. the log is rewritten by one rename: from here on the new files count
    5. the old files are removed, an hour later: a reader that began before still finds them

Stopped at any point, `settle` takes it back (before 4) or finishes it (after 4). A replacement stays
within one file of the log, because only a single rename is seen as a whole. Under the lock of the project:
nothing else writes meanwhile.
"""

import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.spark.pipeline.checkpoints.downstream import mark_read
from penstock.spark.pipeline.project import Project, local_path
from penstock.spark.pipeline.tables.files import LOG_VERSION, log_entries, table_files

# Longer than a query over a table should take.
GRACE_S: Final = 3600.0
NOTES: Final = "replaced"


@dataclass(frozen=True, slots=True)
class Replacement:
    """`old` are replaced by one file that `write` makes at the path it is given; gives its rows. A file
    without rows is left out."""

    old: Sequence[Path]
    write: Callable[[Path], int]


def replace_files(
    project: Project, table: str, log: Path, wanted: Sequence[Replacement], grace_s: float = GRACE_S
) -> None:
    """All in one rename. `log`: the file of the log of the table in which all old files stand. Flows that
    read the table as a stream must have read all of it (downstream.py)."""
    if not wanted:
        return
    new = [one.old[0].with_name(_name(one.old[0])) for one in wanted]
    old = [path for one in wanted for path in one.old]
    note = _Note(project, table, new, old)
    note.write(committed=False)
    kept = {path for path, one in zip(new, wanted, strict=True) if one.write(path)}
    entries = _replaced(log_entries(log), wanted, new, kept)
    added = [one for one in entries if local_path(one["path"]) in kept]
    mark_read(project, project.tables_directory / table, added)
    write_log(log, entries)
    note.write(committed=True)
    if grace_s <= 0:
        note.finish({*new} - kept)


def forget_files(project: Project, table: str, log: Path, old: Sequence[Path]) -> None:
    """From the log of a table, and then from the disk: what they hold is not wanted any more."""
    note = _Note(project, table, [], old)
    note.write(committed=True)
    gone = set(old)
    for path in sorted(one for one in log.iterdir() if one.name[0].isdigit()):
        entries = log_entries(path)
        kept = [one for one in entries if local_path(one["path"]) not in gone]
        if len(kept) < len(entries):
            write_log(path, kept)
    note.finish()
    for directory in {path.parent for path in old} - {log.parent}:
        if not any(directory.iterdir()):
            directory.rmdir()


def _name(old: Path) -> str:
    return f"part-penstock-{uuid.uuid4()}{''.join(old.suffixes)}"


def _replaced(
    entries: Iterable[dict[str, Any]],
    wanted: Sequence[Replacement],
    new: Sequence[Path],
    kept: set[Path],
) -> list[dict[str, Any]]:
    """Each new file stands where the first of those before it stood."""
    group_of = {path: number for number, one in enumerate(wanted) for path in one.old}
    found: list[dict[str, Any]] = []
    placed: dict[int, dict[str, Any]] = {}
    for entry in entries:
        number = group_of.get(local_path(entry["path"]))
        if number is None:
            found.append(entry)
        elif number in placed:
            placed[number]["modificationTime"] = max(
                placed[number]["modificationTime"], entry["modificationTime"]
            )
        elif new[number] in kept:
            size = new[number].stat().st_size
            placed[number] = {**entry, "path": new[number].as_uri(), "size": size}
            found.append(placed[number])
    return found


def write_log(path: Path, entries: Iterable[dict[str, Any]]) -> None:
    """A file of the log of a table, whole or as it was."""
    lines = [LOG_VERSION, *(json.dumps(one, separators=(",", ":")) for one in entries)]
    _put(path, "\n".join(lines), before=path.with_name(f".{path.name}.crc"))


def _put(path: Path, text: str, before: Path | None = None) -> None:
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if before is not None:
        # Spark's checksum of the file is that of what it wrote; a file without one is read as it is.
        before.unlink(missing_ok=True)
    new.replace(path)


class _Note:
    """What is on its way, in a file of the project."""

    def __init__(
        self,
        project: Project,
        table: str,
        new: Sequence[Path],
        old: Sequence[Path],
        path: Path | None = None,
    ) -> None:
        directory = project.own_directory / NOTES
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{uuid.uuid4()}.json" if path is None else path
        self.table = table
        self.new = new
        self.old = old

    def write(self, *, committed: bool) -> None:
        told = {
            "table": self.table,
            "new": [str(path) for path in self.new],
            "old": [str(path) for path in self.old],
            "committed": committed,
            "time_s": time.time(),
        }
        _put(self._path, json.dumps(told))

    def finish(self, more: Iterable[Path] = ()) -> None:
        self.remove([*self.old, *more])

    def remove(self, files: Iterable[Path]) -> None:
        for path in files:
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)


def settle(project: Project, now_s: float | None = None) -> None:
    """Takes back what was stopped, and removes the files that were replaced long enough ago."""
    now_s = time.time() if now_s is None else now_s
    for path in sorted((project.own_directory / NOTES).glob("*.json")):
        told = json.loads(path.read_text(encoding="utf-8"))
        new, old = ([Path(one) for one in told[which]] for which in ("new", "old"))
        note = _Note(project, told["table"], new, old, path)
        directory = project.tables_directory / told["table"]
        live = {one.path for one in table_files(directory)} if directory.is_dir() else set()
        if not told["committed"] and not live.intersection(new):
            note.remove(new)
        elif not told["committed"]:
            note.write(committed=True)
        elif now_s - told["time_s"] >= GRACE_S:
            note.remove(one for one in old if one not in live)
