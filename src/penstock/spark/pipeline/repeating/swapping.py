"""Rebuilt files in the place of those of a Parquet table, beside a pipeline that goes on with it. A crash
at any point leaves the table as it was, or as it should be.

A streaming table is what its log says (tables.py), so one change of the log changes the table:

    .backfill/<table>/new/      the rebuilt files, written by Spark while the pipeline lands more
    .backfill/<table>/names     step 1: what they will be called, for who finds them after a crash
    <table>/<new files>         step 2: moved to the others; the log does not know them yet
    .backfill/<table>/log/      step 3: a log that has the new files, and of the old ones only those with
                                later records
    sources of other flows      step 4: whoever reads the table as a stream is told that it has read the new
                                files (downstream.py)
    <table>/_spark_metadata     step 5: exchanged with .backfill/<table>/log, by one call of the kernel
    <table>/<old files>         step 6: removed, with all of .backfill/<table>

Up to step 5 the table is the old one, from there on it is the new one. What a crash has left is removed by
the next backfill of the table. The names of the log's files stay, so that Spark counts its batches on.
"""

import contextlib
import ctypes
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.spark.pipeline.checkpoints.downstream import mark_read
from penstock.spark.pipeline.errors import PipelineError
from penstock.spark.pipeline.project import Project, local_path
from penstock.spark.pipeline.tables.files import (
    COMPACT,
    LOG_DIRECTORY,
    LOG_VERSION,
    log_batches,
    log_entries,
    table_files,
)
from penstock.spark.pipeline.tables.positions import Layout, TableChanged, read_positions

ASIDE: Final = ".backfill"
# Linux, <fcntl.h> and <linux/fs.h>.
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
# What Spark notes of a file; its readers ask for the path and the size.
_BLOCK_BYTES: Final = 32 << 20

Step = Callable[[str], None]
# By topic and partition: the offset behind the last one that was rebuilt.
Ends = Mapping[tuple[str, int], int]


class CannotExchange(PipelineError):
    path: str
    reason: str

    line = (
        "the file system of {path} cannot exchange two directories ({reason}), which a backfill needs; "
        "penstock pipeline run --full-refresh fills the table anew"
    )


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """`old`: the files that the new ones stand for; `ends`: up to where they do."""

    table: str
    layout: Layout
    old: frozenset[Path]
    ends: Ends


def aside_of(project: Project, table: str) -> Path:
    return project.tables_directory / ASIDE / table


def swap(project: Project, rebuilt: Rebuilt, step: Step = lambda name: None) -> None:
    """With the tables to oneself. `step` is told what comes next. Raises TableChanged, CannotExchange."""
    directory = project.tables_directory / rebuilt.table
    aside = aside_of(project, rebuilt.table)
    log = directory / LOG_DIRECTORY
    kept = _kept(directory, rebuilt)
    new = {path: directory / path.relative_to(aside / "new") for path in _parts(aside / "new")}
    step("names")
    _write(aside / "names", "\n".join(str(one) for one in new.values()))
    for source, target in new.items():
        step(f"move {target.name}")
        target.parent.mkdir(exist_ok=True)
        _sync(source)
        source.rename(target)
    entries = [_entry(path) for path in new.values()]
    step("log")
    _make_log(log, aside / "log", kept, entries)
    step("readers")
    mark_read(project, directory, entries)
    for one in (directory, aside):
        _sync(one)
    step("exchange")
    exchange(aside / "log", log)
    _sync(directory)
    clean_up(project, rebuilt.table, step)


def clean_up(project: Project, table: str, step: Step = lambda name: None) -> None:
    """Removes what a backfill has left: of one that was done the old files, else the new ones."""
    aside = aside_of(project, table)
    directory = project.tables_directory / table
    if not aside.is_dir():
        return
    live = {one.path for one in table_files(directory)} if directory.is_dir() else set()
    left = [Path(one) for one in _lines(aside / "names")]
    if (aside / "log").is_dir():
        left += [local_path(one["path"]) for one in _all_entries(aside / "log")]
    for path in left:
        if path not in live and directory in path.parents:
            step(f"remove {path.name}")
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    step("remove")
    shutil.rmtree(aside)
    with contextlib.suppress(OSError):  # another table has one there
        aside.parent.rmdir()


def exchange(one: Path, other: Path) -> None:
    """Each gets the place of the other, at once. Raises CannotExchange."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        raise CannotExchange(str(other), "no renameat2 here")
    done = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    if done != 0:
        raise CannotExchange(str(other), os.strerror(ctypes.get_errno()))


def _kept(directory: Path, rebuilt: Rebuilt) -> set[Path]:
    """The files that came since. Usually all rows of such a file are later ones. When files were put
    together meanwhile, one may have none of these; if it has some of both, the table has to be read again.
    """
    found = set()
    for one in table_files(directory):
        if one.path in rebuilt.old:
            continue
        before = after = 0
        for place, offsets in read_positions([one.path], rebuilt.layout).positions.items():
            later = sum(len(part) for part in offsets.arrays(rebuilt.ends.get(place, 0)))
            after += later
            before += offsets.count - later
        if before and after:
            raise TableChanged(rebuilt.table)
        if after:
            found.add(one.path)
    return found


def _parts(directory: Path) -> list[Path]:
    found = directory.rglob("*.parquet")
    return sorted(one for one in found if not one.name.startswith((".", "_")))


def _entry(path: Path) -> dict[str, Any]:
    state = path.stat()
    return {
        "path": path.as_uri(),
        "size": state.st_size,
        "isDir": False,
        "modificationTime": state.st_mtime_ns // 1_000_000,
        "blockReplication": 1,
        "blockSize": _BLOCK_BYTES,
        "action": "add",
    }


def _make_log(log: Path, new: Path, kept: set[Path], entries: Sequence[dict[str, Any]]) -> None:
    """The same files as `log` has, with other entries. The new ones stand in the first that counts."""
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    first = log_batches(log)[0][1]
    for path in sorted(log.iterdir()):
        digits = path.name.removesuffix(COMPACT)
        if not digits.isdigit():
            continue  # checksums, which would be those of another content
        stay = [one for one in log_entries(path) if local_path(one["path"]) in kept]
        lines = [*entries, *stay] if path == first else stay
        texts = [LOG_VERSION, *(json.dumps(one, separators=(",", ":")) for one in lines)]
        _write(new / path.name, "\n".join(texts))
    _sync(new)


def _all_entries(log: Path) -> list[dict[str, Any]]:
    return [entry for _, path in log_batches(log) for entry in log_entries(path)]


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """A file or a directory, as it is, to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
