"""What a report is asked for: the broker, the topics, the period. Asks the broker before Spark starts, so
that a wrong key or a mistyped name is told at once. Knows no Spark."""

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase, translate
from typing import Final

from penstock.client.errors import ConnectFailed, NotAuthorized
from penstock.spark.connection import resolve
from penstock.spark.options import read_options
from penstock.spark.report.errors import NoSuchTopics
from penstock.spark.report.words import moment

INTERNAL_PREFIX: Final = "_"
AUDIT_TOPIC: Final = "_audit"
DEAD_LETTER_SUFFIX: Final = ".dlq"
# Options of the data source of the report. Lower case, as Spark hands them over.
FROM_OPTION: Final = "fromus"
TO_OPTION: Final = "tous"
_DEAD_LETTERS: Final = re.escape(DEAD_LETTER_SUFFIX)
_MILLISECOND_US: Final = 1000


@dataclass(frozen=True, slots=True)
class Asked:
    """`connection`: options of format("penstock") that reach the broker. `pattern`: as in a shell; empty:
    all topics but internal ones. `from_us` 0: from the beginning. The record at `to_us` is not read."""

    connection: dict[str, str] = field(repr=False)
    to_us: int
    from_us: int = 0
    pattern: str = ""
    bucket: str | None = None

    @property
    def topics_pattern(self) -> str:
        """A regular expression: the topics and their dead letters."""
        # fnmatch ends its expressions with \Z, or \z: here something may follow.
        pattern = re.sub(r"\\[zZ]$", "", translate(self.pattern))
        wanted = pattern if self.pattern else rf"(?!{INTERNAL_PREFIX}).*"
        return rf"(?s:(?:{wanted})(?:{_DEAD_LETTERS})?)"

    def options(self) -> dict[str, str]:
        """Of the data source of the report."""
        given = {
            **self.connection,
            "subscribePattern": self.topics_pattern,
            "endingTimestamp": str(-(-self.to_us // _MILLISECOND_US)),
            # What retention removes meanwhile is no reason to fail.
            "failOnDataLoss": "false",
            FROM_OPTION: str(self.from_us),
            TO_OPTION: str(self.to_us),
        }
        if self.from_us:
            given["startingTimestamp"] = str(self.from_us // _MILLISECOND_US)
            given["startingOffsetsByTimestampStrategy"] = "latest"
        return given

    @property
    def period(self) -> str:
        """As a person says it."""
        since = f"from {moment(self.from_us)} to" if self.from_us else "up to"
        return f"{since} {moment(self.to_us)}"


def require_topics(asked: Asked) -> None:
    """Raises NoSuchTopics, and what the client raises; tries once."""
    options = {**asked.connection, "subscribePattern": ".*", "fetchOffset.numRetries": "0"}
    connection = resolve(read_options(options, streaming=False).connection)
    try:
        names = connection.call(lambda client: client.topics())
    except NotAuthorized as error:
        error.add_note("give an API key that may read topics, with PENSTOCK_KEY or a context")
        raise
    except ConnectFailed as error:
        error.add_note("--flight names the Flight listener of a server that runs")
        raise
    finally:
        connection.drop()
    if not any(fits(name, asked.pattern) for name in names):
        raise NoSuchTopics(asked.pattern)


def fits(name: str, pattern: str) -> bool:
    if not pattern:
        return not name.startswith(INTERNAL_PREFIX)
    return fnmatchcase(name, pattern)
