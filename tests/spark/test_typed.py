"""Typed rows through Spark: columns by a registered schema, what does not fit, versions, topics."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from kit.live_server import LiveServer
from spark.conftest import Load, Make, append, options, run_now

from penstock.client.flight import FlightClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPED = {"schema": "registry"}
ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": "number"},
        "paid": {"type": ["boolean", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"type": "string", "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "to": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"sku": {"type": "string"}}},
        },
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "free": {},
        "_offset": {"type": "string"},
    },
}
FULL = {
    "id": 7,
    "price": 2.5,
    "paid": True,
    "at": "2026-01-02T03:04:05.000006+01:00",
    "day": "2026-01-02",
    "tags": ["a", "b"],
    "to": {"city": "Rome"},
    "lines": [{"sku": "x"}, {}],
    "counts": {"k": 1},
    "free": [1, {"a": None}],
    "_offset": "mine",
    "unknown": 1,
}


def register(server: LiveServer, name: str, kind: str, *definitions: object) -> None:
    registry = server.server.broker.schemas.registry
    for one in definitions:
        text = one if isinstance(one, str) else json.dumps(one)
        registry.register(name, kind, text.encode(), "none")


def bind(server: LiveServer, topic: str, schema: str) -> None:
    engine = server.server.engine
    server.settle(lambda: engine.change_topic(topic, {"schema": schema}))


def encoded(*values: object) -> list[bytes]:
    return [one if isinstance(one, bytes) else json.dumps(one).encode() for one in values]


def test_json_values_as_columns(
    load: Load, server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    register(server, topic, "json", ORDER)
    make(topic, encoded(FULL, {"id": "seven"}, b"no json", {"id": 8, "to": {}}, {"id": 9}))
    bind(server, topic, topic)
    frame = load(subscribe=topic, includeHeaders="true", **TYPED)
    assert dict(frame.dtypes) == {
        "id": "bigint",
        "price": "double",
        "paid": "boolean",
        "at": "timestamp",
        "day": "date",
        "tags": "array<string>",
        "to": "struct<city:string>",
        "lines": "array<struct<sku:string>>",
        "counts": "map<string,bigint>",
        "free": "string",
        "__offset": "string",
        "_key": "binary",
        "_topic": "string",
        "_partition": "int",
        "_offset": "bigint",
        "_timestamp": "timestamp",
        "_headers": "array<struct<key:string,value:binary>>",
        "_deleted": "boolean",
        "_raw": "binary",
        "_error": "string",
    }
    rows = frame.orderBy("_offset").collect()
    good = rows[0]
    assert good.at.astimezone(UTC) == datetime(2026, 1, 2, 2, 4, 5, 6, UTC)
    assert (good.id, good.price, good.paid, good.day) == (7, 2.5, True, date(2026, 1, 2))
    assert (good.tags, good.to.city, good.counts) == (["a", "b"], "Rome", {"k": 1})
    assert [one.sku for one in good.lines] == ["x", None]
    assert json.loads(good.free) == [1, {"a": None}]
    assert (good["__offset"], good["_offset"], good["_topic"]) == ("mine", 0, topic)
    assert (good["_raw"], good["_error"], good["_deleted"]) == (None, None, False)
    assert [row.id for row in rows] == [7, None, None, None, 9]
    assert [row["_error"] for row in rows[1:]] == [
        "type mismatch at id: expected integer, got string",
        "invalid JSON: JSON is malformed: invalid character (byte 4)",
        "missing required field: to.city",
        None,
    ]
    assert bytes(rows[2]["_raw"]) == b"no json"


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD"]}},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "either", "type": ["null", "string", "long"], "default": None},
        {"name": "sizes", "type": {"type": "map", "values": "double"}},
        {"name": "previous", "type": {"type": "array", "items": "State"}},
    ],
}  # fmt: skip
AVRO_2 = {**AVRO, "fields": [*AVRO["fields"], {"name": "more", "type": "string", "default": "-"}]}
AVRO_3 = {
    **AVRO,
    "fields": [
        {**one, "type": "long"} if one["name"] == "count" else one for one in AVRO["fields"]
    ],
}
AVRO_ROW = {
    "id": 1,
    "count": 2,
    "price": Decimal("12.50"),
    "day": date(2026, 1, 2),
    "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "local": datetime(2026, 1, 2, 3, 4, 5),
    "state": "OLD",
    "note": None,
    "either": 5,
    "sizes": {"a": 1.5},
    "previous": ["NEW"],
}


def avro(schema: dict[str, Any], row: object) -> bytes:
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), row)
    return content.getvalue()


def test_avro_values_as_columns_and_their_versions(
    load: Load, server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    register(server, topic, "avro", AVRO)
    make(topic, [avro(AVRO, AVRO_ROW), b"\x02"])
    register(server, topic, "avro", AVRO_2)
    append(client, topic, 0, [avro(AVRO_2, {**AVRO_ROW, "id": 3, "more": "new"})])
    register(server, topic, "avro", AVRO_3)
    wide = [{**AVRO_ROW, "id": 4}, {**AVRO_ROW, "id": 5, "count": 1 << 40}]
    append(client, topic, 0, [avro(AVRO_3, row) for row in wide])
    found = {
        version: load(subscribe=topic, schemaName=topic, schemaVersion=version, **TYPED)
        .orderBy("_offset")
        .collect()
        for version in (1, 2)
    }
    first = found[2][0]
    same = {name for name in AVRO_ROW if name not in ("at", "either")}
    assert {name: first[name] for name in same} == {name: AVRO_ROW[name] for name in same}
    assert first.at.astimezone(UTC) == AVRO_ROW["at"]
    assert first.either == "5" and first.more == "-"
    assert [row.id for row in found[2]] == [1, None, 3, 4, None]
    assert [row.id for row in found[1]] == [1, None, 3, 4, None]
    assert found[2][2].more == "new" and "more" not in found[1][2]
    assert "invalid Avro" in found[1][1]["_error"]
    # What a column cannot hold is an error of its record alone.
    assert "too large" in found[1][4]["_error"] and found[1][4]["_raw"]


PROTO = """\
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1;
  uint64 large = 2;
  optional string note = 3;
  google.protobuf.Timestamp at = 4;
  State state = 5;
  repeated Line lines = 6;
  map<string, int32> counts = 7;
  google.protobuf.StringValue word = 8;
  Order inner = 9;
  bytes blob = 10;
}
message Line { string sku = 1; }
enum State { NEW = 0; OLD = 1; }
"""


def message(server: LiveServer, schema: str) -> Any:
    validator = server.server.broker.schemas.registry.validator(schema)
    return validator._message()  # type: ignore[attr-defined]  # the class that its definition gives


def test_protobuf_values_as_columns(load: Load, server: LiveServer, make: Make, topic: str) -> None:
    register(server, topic, "protobuf", PROTO)
    one = message(server, topic)
    one.id, one.large, one.state, one.blob = 5, 2**64 - 1, 1, b"\xff"
    one.at.FromJsonString("2026-01-02T03:04:05.000006Z")
    one.lines.add(sku="x")
    one.counts["a"] = 1
    one.word.value = "w"
    one.inner.id = 6
    make(topic, [one.SerializeToString(), b"", b"\xff\xff"])
    bind(server, topic, topic)
    frame = load(subscribe=topic, **TYPED).orderBy("_offset")
    full, empty, wrong = frame.collect()
    assert (full.id, full.large, full.state, bytes(full.blob)) == (5, 2**64 - 1, "OLD", b"\xff")
    assert full.at.astimezone(UTC) == datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    assert (full.note, full.lines[0].sku, full.counts, full.word) == (None, "x", {"a": 1}, "w")
    assert json.loads(full.inner) == {"id": "6"}
    assert (empty.id, empty.state, empty["at"], empty["_error"]) == (0, "NEW", None, None)
    assert "invalid Protobuf" in wrong["_error"] and wrong.id is None


def test_a_running_query_keeps_its_columns(
    spark: "SparkSession",
    stream: Load,
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    old = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    new = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    register(server, topic, "json", old)
    make(topic, encoded({"a": 1}))
    bind(server, topic, topic)
    given = {"subscribe": topic, "startingOffsets": "earliest", **TYPED}
    frame = stream(**given)
    writer = frame.select("a", "_error").writeStream.format("parquet")
    query = (
        writer.option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "check"))
        .start()
    )
    try:
        query.processAllAvailable()
        register(server, topic, "json", new)
        append(client, topic, 0, encoded({"a": 2, "b": "x"}, {"b": "y"}))
        bind(server, topic, "")  # so that something wrong can come in
        append(client, topic, 0, encoded({"a": "z"}))
        query.processAllAvailable()
    finally:
        query.stop()
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((str(row.a), str(row["_error"])) for row in rows) == [
        ("1", "None"),
        ("2", "None"),
        ("None", "None"),
        ("None", "type mismatch at a: expected integer, got string"),
    ]
    # Loaded anew it has the new columns, and the checkpoint goes on.
    bind(server, topic, topic)
    append(client, topic, 0, encoded({"b": "last"}))
    again = stream(**given).select("b", "_error")
    assert again.columns == ["b", "_error"]
    assert sum(run_now(again, tmp_path / "check")) == 1


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"schema": "registry"}, "is bound to no schema: penstock schema bind"),
        ({"schema": "other"}, "option schema: 'other' is unknown"),
        ({"schemaName": "x"}, "option schemaName: does nothing without schema registry"),
        ({"schema": "registry", "schemaName": "nowhere"}, "nowhere"),
    ],
)
def test_what_is_refused(
    load: Load, make: Make, topic: str, given: dict[str, str], complaint: str
) -> None:
    make(topic)
    with pytest.raises(Exception, match=complaint):
        load(subscribe=topic, **given).columns  # noqa: B018  # over Connect the load itself asks nothing


def test_several_topics(
    load: Load, server: LiveServer, client: FlightClient, make: Make, topic: str
) -> None:
    one, other = f"{topic}-a", f"{topic}-b"
    for number, name in enumerate((one, other)):
        register(server, name, "json", ORDER)
        make(name, encoded({"id": number}))
        bind(server, name, name)
    both = f"{one},{other}"
    with pytest.raises(Exception, match="bound to different schemas"):
        pairs(load(subscribe=both, **TYPED))
    bind(server, other, one)
    for frame in (
        load(subscribe=both, **TYPED),
        load(subscribePattern=f"{topic}-.", **TYPED),
        load(assign=json.dumps({one: [0], other: [0]}), schemaName=one, **TYPED),
    ):
        assert sorted(pairs(frame)) == [(one, 0), (other, 1)]


def pairs(frame: "DataFrame") -> list[tuple[str, int]]:
    return [(row["_topic"], row.id) for row in frame.select("_topic", "id").collect()]


def test_a_null_value_is_a_deletion(
    load: Load, server: LiveServer, spark: "SparkSession", make: Make, topic: str
) -> None:
    register(server, topic, "json", ORDER)
    make(topic)
    bind(server, topic, topic)
    frame = spark.createDataFrame([("k", None)], "key STRING, value STRING")
    frame.write.format("penstock").options(**options(server, topic=topic)).mode("append").save()
    (row,) = load(subscribe=topic, **TYPED).collect()
    assert (bytes(row["_key"]), row["_deleted"], row["_error"], row.id) == (b"k", True, None, None)


def test_a_query_that_must_not_miss_new_columns_ends_before_them(
    spark: "SparkSession",
    stream: Load,
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
) -> None:
    """Also where the newer version comes while the query runs; started again, it goes on with them."""
    from pyspark.errors import StreamingQueryException

    old = {"type": "object", "properties": {"a": {"type": "integer"}}}
    new = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    register(server, topic, "json", old)
    make(topic, encoded({"a": 1}))
    given = {"subscribe": topic, "startingOffsets": "earliest", "schemaName": topic, **TYPED}
    given["failOnNewSchema"] = "true"
    place, table = tmp_path / "checkpoint", str(tmp_path / "table")
    old_frame = stream(**given)
    assert run_now(old_frame, place, "parquet", path=table) == [1]
    register(server, topic, "json", new)
    append(client, topic, 0, encoded({"a": 2, "b": "new"}))
    with pytest.raises(StreamingQueryException, match="has version 2 by now"):
        run_now(old_frame, place, "parquet", path=table)
    assert run_now(stream(**given), place, "parquet", path=table) == [1]
    rows = spark.read.option("mergeSchema", "true").parquet(table).collect()
    assert sorted((row.a, row.b or "") for row in rows) == [(1, ""), (2, "new")]
