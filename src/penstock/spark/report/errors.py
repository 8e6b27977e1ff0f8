"""What can go wrong with a report, each as one line for a person."""

from typing import ClassVar

from penstock.errors import ExitCode, PenstockError


class ReportError(PenstockError):
    """The root of these errors."""


class NoSuchTopics(ReportError):
    """No topic that the key may read fits the pattern."""

    pattern: str

    exit_code: ClassVar[int] = ExitCode.NOT_FOUND

    def __str__(self) -> str:
        if self.pattern:
            return f"no topic matches {self.pattern!r}; penstock topic ls shows all"
        return "there are no topics that this key may read; penstock topic ls shows all"


class NoTraffic(ReportError):
    """`period` as a person reads it."""

    period: str

    exit_code: ClassVar[int] = ExitCode.NOT_FOUND
    line = "no records {period}; --from earliest reads all that the log keeps"


class TooManyBars(ReportError):
    """`fitting`: the finest width that would do."""

    bucket: str
    bars: int
    most: int
    fitting: str

    line = "--bucket {bucket} gives {bars} bars, and {most} are the most; --bucket {fitting} fits"


class JobFailed(ReportError):
    """`reason` is the line of Spark's error that matters; `log` has the rest."""

    reason: str
    log: str

    def __str__(self) -> str:
        return f"{self.reason}; all that Spark said is in {self.log}" if self.log else self.reason
