"""Expectations: rules for the rows of a table, and what becomes of rows that break one.

A rule is a condition of SQL over the columns of the table. It must be true: a null breaks it. Rules are
asked in their order, those that fail the update first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from penstock.spark.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import Column

Otherwise = Literal["dead-letter", "drop", "fail"]
WAYS: Final = ("dead-letter", "drop", "fail")


class WrongExpectation(PipelineError):
    name: str
    otherwise: str

    line = "expectation {name!r}: otherwise={otherwise!r} is unknown, there are dead-letter, drop and fail"


@dataclass(frozen=True, slots=True)
class Expectation:
    name: str
    rule: str
    otherwise: Otherwise


def expect(name: str, rule: str, otherwise: Otherwise = "dead-letter") -> Expectation:
    """`rule` is what must be true of a row. Otherwise it is set aside with its reason, left out, or the
    update fails and nothing of its batch is written. Raises WrongExpectation."""
    if otherwise not in WAYS:
        raise WrongExpectation(name, str(otherwise))
    return Expectation(name, rule, otherwise)


def broken(rules: Sequence[Expectation], otherwise: Otherwise) -> "Column":
    """The first of these rules that a row breaks, as text; null where it breaks none."""
    from pyspark.sql import functions as F

    found = F.lit(None).cast("string")
    for one in reversed(rules):
        if one.otherwise == otherwise:
            holds = F.coalesce(F.expr(one.rule), F.lit(False))
            found = F.when(~holds, F.lit(f"{one.name}: {one.rule}")).otherwise(found)
    return found
