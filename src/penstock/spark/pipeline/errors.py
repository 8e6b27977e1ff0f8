"""What can go wrong with a pipeline, each as one line for a person."""

from typing import ClassVar

from penstock.errors import ExitCode, PenstockError


class PipelineError(PenstockError):
    """The root of these errors."""


class NoProject(PipelineError):
    directory: str

    exit_code: ClassVar[int] = ExitCode.NOT_FOUND
    line = "{directory} has no spark-pipeline.yml; penstock pipeline init NAME writes a project"


class BrokenProject(PipelineError):
    """A file of the project that cannot be used, and why."""

    path: str
    problem: str

    line = "{path}: {problem}"


class UpdateFailed(PipelineError):
    """`reason` is the line of Spark's error that matters; `log` has the rest."""

    reason: str
    log: str

    def __str__(self) -> str:
        return f"{self.reason}; all that Spark said is in {self.log}" if self.log else self.reason


class NoTable(PipelineError):
    table: str
    known: str

    exit_code: ClassVar[int] = ExitCode.NOT_FOUND
    line = "no table named {table}; {known}"


class InUse(PipelineError):
    directory: str

    line = "another update of {directory} is running; wait for it, or stop it"


class LostCheckpoint(PipelineError):
    """A table that Spark would fill with holes."""

    table: str
    directory: str

    line = (
        "the checkpoint of {table} is gone, and without it Spark would skip records; "
        "penstock pipeline run {directory} --full-refresh {table} fills the table anew"
    )


class NoFormat(PipelineError):
    """Tables of a format that cannot be had here, or not without something more."""

    title: str
    problem: str

    line = "{title}: {problem}"
