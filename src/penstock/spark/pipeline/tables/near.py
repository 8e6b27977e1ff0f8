"""Which project is meant when none is named: that of the working directory, of one above it, or the one
below it that has such a table."""

from pathlib import Path

from penstock.spark.pipeline.errors import NoProject, PipelineError
from penstock.spark.pipeline.project import SPEC_NAMES, Project, load_project
from penstock.spark.pipeline.tables.files import table_names


class SeveralProjects(PipelineError):
    table: str
    found: str

    line = "{found} have a table {table}; name one with --project"


def near_project(given: Path | None, table: str, here: Path | None = None) -> Project:
    """Raises NoProject, SeveralProjects."""
    if given is not None:
        return load_project(given)
    here = Path.cwd() if here is None else here
    for directory in (here, *here.parents):
        if _has_spec(directory):
            return load_project(directory)
    below = [load_project(one) for one in sorted(here.iterdir()) if one.is_dir() and _has_spec(one)]
    if not below:
        raise NoProject(str(here))
    fitting = [one for one in below if table.lower() in table_names(one)] or below
    if len(fitting) > 1:
        found = " and ".join(one.directory.name for one in fitting)
        raise SeveralProjects(table, found)
    return fitting[0]


def _has_spec(directory: Path) -> bool:
    return any((directory / name).is_file() for name in SPEC_NAMES)
