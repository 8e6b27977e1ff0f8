"""What `penstock pipeline check` can find, each as one line for a person."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Final

from penstock.errors import ExitCode
from penstock.spark.pipeline.errors import PipelineError


class Kind(StrEnum):
    GAP = "gap"
    DOUBLE = "double"
    REPLAYED_TWICE = "replayed twice"
    IN_BOTH = "in both"
    AHEAD = "ahead"
    LOG_ENDS = "log ends"


_LINES: Final = {
    Kind.GAP: "{table} has no row for {place}, which the log has ({count} missing); "
    "penstock pipeline backfill makes the table anew",
    Kind.DOUBLE: "{table} has {place} twice ({count} rows too many); "
    "penstock pipeline backfill makes the table anew",
    Kind.REPLAYED_TWICE: "{table} has the record that was {place} at first more than once "
    "({count} rows too many): it was replayed when its watermark had passed",
    Kind.IN_BOTH: "{table} both have {place} ({count} such records); "
    "penstock pipeline backfill makes both anew",
    Kind.AHEAD: "{table} has {place}, which its checkpoint has not reached ({count} such rows): "
    "the next update lands it again; penstock pipeline run --full-refresh makes the table anew",
    Kind.LOG_ENDS: "the checkpoint of {table} is past {place}, where the log ends: "
    "records are gone, or the log is an older copy",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """The first record that is wrong, and how many are."""

    kind: Kind
    table: str
    topic: str
    partition: int
    offset: int
    count: int = 1

    @property
    def place(self) -> tuple[str, int, int]:
        return (self.topic, self.partition, self.offset)

    def __str__(self) -> str:
        place = f"{self.topic}/{self.partition}/{self.offset}"
        return _LINES[self.kind].format(table=self.table, place=place, count=self.count)


class CheckFailed(PipelineError):
    problem: Problem

    exit_code: ClassVar[int] = ExitCode.FAILED

    def __str__(self) -> str:
        return str(self.problem)
