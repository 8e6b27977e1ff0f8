"""The error of records that their schema refuses."""

from collections.abc import Iterable

from penstock.broker.errors import BrokerError, Code


class SchemaViolation(BrokerError):
    """Some records of one publish do not fit the schema. `rows`: their numbers, with path and rule of each.
    `diverts`: the topic wants them in its dead letters, and the other records stored."""

    def __init__(self, schema: str, rows: dict[int, str], count: int, diverts: bool) -> None:
        first = min(rows)
        place = "" if count == 1 else f"record {first}: "
        more = "" if len(rows) == 1 else f" (and {len(rows) - 1} more)"
        text = f"schema {schema!r} refuses it: {place}{rows[first]}{more}"
        super().__init__(Code.SCHEMA_VIOLATION, text)
        self.args = (schema, rows, count, diverts)
        self.schema = schema
        self.rows = rows
        self.count = count
        self.diverts = diverts

    def of(self, row: int) -> "SchemaViolation":
        """The refusal of one record, as if it had been published alone."""
        return SchemaViolation(self.schema, {0: self.rows[row]}, 1, self.diverts)

    def others(self) -> list[int]:
        """The records that fit."""
        return [row for row in range(self.count) if row not in self.rows]

    def refused(self) -> list[int]:
        return sorted(self.rows)

    def among(self, rows: Iterable[int]) -> list[str]:
        return [self.rows[row] for row in rows]
