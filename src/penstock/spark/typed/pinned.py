"""Which schema of the registry a read uses, and the columns that Spark is told.

Spark asks for the columns when a table is loaded, and hands them to the reader later, perhaps much later.
The version stands in the metadata of the last column: a reader uses that one, whatever has been registered
since. A new load takes the latest.

    the members of the schema, and behind them
    _key _topic _partition _offset _timestamp [_headers] [_protocol] _deleted _raw _error

A member that is called like one of ours gets one more underscore: _offset is __offset, and __offset is
___offset. So no two columns have one name.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.errors import PenstockError
from penstock.spark.options import Selection, TypedOptions
from penstock.spark.typed.shape import Errors, Object

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from penstock.client.flight import FlightClient

OWN: Final = (
    "_key",
    "_topic",
    "_partition",
    "_offset",
    "_timestamp",
    "_headers",
    "_protocol",
    "_deleted",
    "_raw",
    "_error",
)
_LIKE_OURS: Final = re.compile(f"_*({'|'.join(OWN)})", re.IGNORECASE)
# In the metadata of column _error.
NAME_KEY: Final = "penstock.schema"
VERSION_KEY: Final = "penstock.schemaVersion"
# Topics that an error names.
MAX_NAMED: Final = 3


class NotTyped(PenstockError):
    """The topics have no schema that all their values could be read with."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class NewSchema(PenstockError):
    """A stream that is to end rather than to leave out what a newer version has added."""

    name: str
    version: int
    latest: int

    line = (
        "schema {name!r} has version {latest} by now, and this query reads with version {version}: it goes"
        " on with the new columns when it is started again"
    )


@dataclass(frozen=True, slots=True)
class Pinned:
    """One version of a schema, complete: tasks ask the server for nothing."""

    name: str
    version: int
    kind: str
    definition: str = field(repr=False)
    descriptors: bytes = field(default=b"", repr=False)


class Rows(Protocol):
    """What each kind of schema offers."""

    shape: Object

    def decoded(self, values: Sequence[bytes | None]) -> tuple[list[Any], Errors]:
        """A row per value; None for a null and for what does not fit, which is in the errors."""
        ...

    def projected(self, value: bytes, writer: Any) -> Any:
        """A row of a value that another version wrote. Raises NotFitting."""
        ...


def fetch(client: "FlightClient", name: str, version: int) -> Pinned:
    found = client.schema(name, version)
    return Pinned(found.name, found.version, found.kind, found.definition, found.descriptors)


def choose(client: "FlightClient", selection: Selection, typed: TypedOptions) -> Pinned:
    """The schema that the options name, or that all selected topics are bound to. Raises NotTyped."""
    if typed.name is not None:
        return fetch(client, typed.name, typed.version)
    bound: dict[str, list[str]] = {}
    versions: set[int] = set()
    for topic in _selected(client, selection):
        # Of no partition: there may be thousands.
        found = client.action("offsets", topic=topic, partitions=[])
        bound.setdefault(found["schema"], []).append(topic)
        versions.add(found["schema_version"])
    if not bound:
        raise NotTyped(f"{selection} finds no topic: name the schema with option schemaName")
    if "" in bound:
        first = bound[""][0]
        hint = f"penstock schema bind {first} NAME, or name one with option schemaName"
        raise NotTyped(f"topic {first!r} is bound to no schema: {hint}")
    if len(bound) > 1:
        shown = ", ".join(f"{topics[0]!r} to {name!r}" for name, topics in sorted(bound.items()))
        hint = "read them apart, or name one with option schemaName"
        raise NotTyped(f"the topics are bound to different schemas, {shown}: {hint}")
    (name,) = bound
    # Bound to different versions: the newest. 0 is the latest.
    return fetch(client, name, typed.version or (0 if 0 in versions else max(versions)))


def check_newest(
    client: "FlightClient", selection: Selection, typed: TypedOptions, pinned: Pinned
) -> None:
    """Raises NewSchema. What was stored before this question came from no newer version than this one."""
    latest = choose(client, selection, typed)
    if latest.version > pinned.version:
        raise NewSchema(pinned.name, pinned.version, latest.version)


def _selected(client: "FlightClient", selection: Selection) -> list[str]:
    if selection.assigned is not None:
        return [topic for topic, _ in selection.assigned]
    if selection.topics is not None:
        return list(selection.topics)
    pattern = re.compile(selection.pattern or "")
    return sorted(topic for topic in client.topics() if pattern.fullmatch(topic))


@lru_cache(maxsize=16)
def compiled(pinned: Pinned) -> Rows:
    """Raises NotTyped when this Python lacks the library of its kind, or it has no columns."""
    try:
        rows = _compiled(pinned)
    except ModuleNotFoundError as error:
        hint = "pip install 'penstock[spark]' on the driver and on every executor"
        raise NotTyped(f"{pinned.kind} schemas need the module {error.name}: {hint}") from None
    return rows


def _compiled(pinned: Pinned) -> Rows:
    if pinned.kind == "json":
        from penstock.spark.typed.json_rows import JsonRows

        return JsonRows(pinned.definition)
    if pinned.kind == "avro":
        from penstock.spark.typed.avro_rows import AvroRows

        return AvroRows(pinned.definition)
    if pinned.kind == "protobuf":
        from penstock.spark.typed.protobuf_rows import ProtobufRows

        return ProtobufRows(pinned.descriptors)
    raise NotTyped(
        f"schema {pinned.name!r} is of kind {pinned.kind}, which this version cannot read"
    )


def column_name(member: str) -> str:
    return f"_{member}" if _LIKE_OURS.fullmatch(member) else member


def arrow_schema(pinned: Pinned, extras: tuple[str, ...]) -> "pa.Schema":
    """The columns of the rows, as Spark wants them."""
    import pyarrow as pa

    from penstock.spark.typed.shape import TIMESTAMP

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    own = {
        "_key": pa.binary(),
        "_topic": pa.string(),
        "_partition": pa.int32(),
        "_offset": pa.int64(),
        "_timestamp": TIMESTAMP,
        "_headers": pa.list_(pa.field("element", header)),
        "_protocol": pa.string(),
        "_deleted": pa.bool_(),
        "_raw": pa.binary(),
        "_error": pa.string(),
    }
    for name in {"headers", "protocol"}.difference(extras):
        del own[f"_{name}"]
    members = [(column_name(one.name), one.shape.type) for one in compiled(pinned).shape.members]
    return pa.schema([*members, *own.items()])


def spark_schema(pinned: Pinned, extras: tuple[str, ...]) -> "StructType":
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    fields = [
        StructField(one.name, from_arrow_type(one.type, True))
        for one in arrow_schema(pinned, extras)
    ]
    fields[-1].metadata = {NAME_KEY: pinned.name, VERSION_KEY: pinned.version}
    return StructType(fields)


def pinned_in(schema: "StructType") -> tuple[str, int] | None:
    """Name and version that a schema of ours was made from."""
    for one in schema.fields:
        if one.metadata and NAME_KEY in one.metadata:
            return str(one.metadata[NAME_KEY]), int(one.metadata[VERSION_KEY])
    return None
