"""Batches of records as typed rows. Runs in a task.

A value that does not decode has nulls in the typed columns, its bytes in _raw and the reason in _error.
Before that it is tried as a value of another version of the schema: a version that came later may have made
a field optional, and what was stored long ago was written by an earlier one. Avro does not
decode by the wrong version: there the one that was the latest when the record was stored comes first.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.errors import Refused
from penstock.spark.connection import Connection
from penstock.spark.ranges import Range
from penstock.spark.typed.pinned import Pinned, Rows, arrow_schema, compiled, fetch
from penstock.spark.typed.shape import Errors, NotFitting, OtherColumns, columns

if TYPE_CHECKING:
    from penstock.client.flight import RegisteredSchema

# Versions that a value is tried with: a wrong value must not cost without bound.
MAX_TRIED: Final = 16
MAX_REASON: Final = 300
# What a value can do while columns are made of decoded rows.
_UNFIT: Final = (
    pa.ArrowException,
    ValueError,
    TypeError,
    OverflowError,
    ArithmeticError,
    AttributeError,
    LookupError,
)

Constant = Callable[[str | int, pa.DataType, int], pa.Array]


class Versions:
    """Other versions of a schema, from the registry. Those that were compiled are kept."""

    def __init__(self, connection: Connection, pinned: Pinned) -> None:
        self._connection = connection
        self._pinned = pinned
        self._schema: RegisteredSchema | None = None
        self._times: list[tuple[int, int]] = []

    def _known(self) -> "RegisteredSchema":
        """Asked once for a task: what it reads was stored before it began."""
        if self._schema is None:
            name = self._pinned.name
            self._schema = self._connection.call(lambda client: client.schema(name))
            self._times = sorted(
                (created_us, version) for version, created_us in self._schema.versions.items()
            )
        return self._schema

    def at(self, time_us: int) -> int:
        """The version that was the latest at this time; for what is older than all the first one."""
        self._known()
        place = bisect_right(self._times, (time_us, 1 << 62))
        return self._times[max(0, place - 1)][1] if self._times else self._pinned.version

    def rows(self, version: int) -> Rows | None:
        """None: it is gone from the registry."""
        pinned = self._pinned
        if version != pinned.version:
            try:
                pinned = self._connection.call(
                    lambda client: fetch(client, self._pinned.name, version)
                )
            except Refused:
                return None
        return compiled(pinned) if pinned.kind == self._pinned.kind else None

    def candidates(self, time_us: int) -> Iterator[int]:
        """The one of that time, the pinned one, then from the newest on."""
        newest = sorted(self._known().versions, reverse=True)
        order = dict.fromkeys((self.at(time_us), self._pinned.version, *newest))
        yield from list(order)[:MAX_TRIED]


class TypedRows:
    """`constant` makes a column of one value."""

    def __init__(
        self,
        connection: Connection,
        pinned: Pinned,
        constant: Constant,
        extras: tuple[str, ...],
        *,
        raw: bool = False,
    ) -> None:
        self._raw = raw
        self._pinned = pinned
        self._constant = constant
        self._own = compiled(pinned)
        self._versions = Versions(connection, pinned)
        self._compiled: dict[int, Rows | None] = {pinned.version: self._own}
        self._schema = arrow_schema(pinned, extras)

    def batch(self, batch: pa.RecordBatch, wanted: Range) -> pa.RecordBatch:
        """The columns of pinned.py, from those that the server sends."""
        count = batch.num_rows
        key, value, offset, timestamp, *extras = batch.columns
        values: list[bytes | None] = value.to_pylist()
        rows, errors = self._decoded(values, timestamp)
        typed = self._columns(rows, errors)
        raw, reasons = pa.nulls(count, pa.binary()), pa.nulls(count, pa.string())
        if errors:
            wrong = pa.array([errors.get(number) for number in range(count)], pa.string())
            reasons = pc.utf8_slice_codeunits(wrong, 0, MAX_REASON)
            raw = pc.if_else(wrong.is_valid(), value, pa.scalar(None, pa.binary()))
        if self._raw:
            raw = value
        own = [
            key,
            self._constant(wanted.topic, pa.string(), count),
            self._constant(wanted.partition, pa.int32(), count),
            offset,
            timestamp,
            *self._extras(batch.schema.names, extras),
            value.is_null(),
            raw,
            reasons,
        ]
        return pa.RecordBatch.from_arrays([*typed, *own], schema=self._schema)

    # --- decoding --------------------------------------------------------------------------------

    def _extras(self, names: list[str], columns: list[pa.Array]) -> list[pa.Array]:
        own = [f"_{name}" for name in names[-len(columns) :]] if columns else []
        kinds = [self._schema.field(name).type for name in own]
        return [column.cast(kind) for column, kind in zip(columns, kinds, strict=True)]

    def _decoded(
        self, values: Sequence[bytes | None], timestamp: pa.Array
    ) -> tuple[list[Any], Errors]:
        if self._pinned.kind == "avro":
            rows, errors = self._by_time(values, timestamp)
        else:
            rows, errors = self._own.decoded(values)
        times = timestamp.cast(pa.int64()) if errors else None
        for number in list(errors):
            value = values[number]
            assert value is not None and times is not None
            try:
                rows[number] = self._by_any(value, times[number].as_py())
                del errors[number]
            except OtherColumns as error:
                errors[number] = str(error)
            except NotFitting:
                continue  # the reason of the first one stands
        return rows, errors

    def _by_time(
        self, values: Sequence[bytes | None], timestamp: pa.Array
    ) -> tuple[list[Any], Errors]:
        times = pc.min_max(timestamp.cast(pa.int64())).as_py()
        if self._versions.at(times["min"]) == self._versions.at(times["max"]):
            writer = self._writer(self._versions.at(times["min"]))
            if writer is None or writer is self._own:
                return self._own.decoded(values)
        rows: list[Any] = []
        errors: Errors = {}
        for number, (value, time_us) in enumerate(
            zip(values, timestamp.cast(pa.int64()).to_pylist(), strict=True)
        ):
            writer = self._writer(self._versions.at(time_us)) or self._own
            try:
                rows.append(None if value is None else self._own.projected(value, writer))
            except NotFitting as error:
                rows.append(None)
                errors[number] = str(error)
        return rows, errors

    def _by_any(self, value: bytes, time_us: int) -> Any:
        other: OtherColumns | None = None
        for version in self._versions.candidates(time_us):
            writer = self._writer(version)
            if writer is None:
                continue
            try:
                return self._own.projected(value, writer)
            except OtherColumns as error:
                mine = self._pinned.version
                text = f"fits version {version}, not the columns of version {mine}: {error}"
                other = other or OtherColumns(text)
            except NotFitting:
                continue
        raise other or NotFitting

    def _writer(self, version: int) -> Rows | None:
        if version not in self._compiled:
            self._compiled[version] = self._versions.rows(version)
        return self._compiled[version]

    # --- columns ---------------------------------------------------------------------------------

    def _columns(self, rows: list[Any], errors: Errors) -> list[pa.Array]:
        shape = self._own.shape
        try:
            return columns(shape, rows, complete=not any(row is None for row in rows))
        except _UNFIT:
            self._find_unfit(rows, errors, 0, len(rows))
        return columns(shape, rows)

    def _find_unfit(self, rows: list[Any], errors: Errors, start: int, end: int) -> None:
        """Some row has what its column cannot hold. By halves: it is one of very many."""
        try:
            columns(self._own.shape, rows[start:end])
        except _UNFIT as error:
            if end - start == 1:
                rows[start] = None
                errors[start] = " ".join(str(error).split())
                return
            middle = (start + end) // 2
            self._find_unfit(rows, errors, start, middle)
            self._find_unfit(rows, errors, middle, end)
