"""Tables of a project as Spark would have written them: files, their log, and the checkpoint of the flow.
For tests of what reads them, without a JVM."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from kit.live_server import LiveServer
from spark.conftest import address

from penstock.client.flight import FlightClient
from penstock.spark.pipeline.starter import write_project

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
BRONZE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("protocol", pa.string()),
        ("day", pa.date32()),
    ]
)
SILVER = pa.schema(
    [
        ("n", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("_origin", pa.string()),
    ]
)
LETTERS = pa.schema(
    [
        ("reason", pa.string()),
        *((name, BRONZE.field(name).type) for name in BRONZE.names[:7]),
        ("origin", pa.string()),
    ]
)
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


def project_of(directory: Path, server: LiveServer) -> Path:
    write_project(directory)
    spec = directory / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("127.0.0.1:8815", address(server)))
    return directory


def bronze_rows(
    topic: str, offsets: Sequence[int], partition: int = 0, at: datetime = NOW
) -> list[dict[str, Any]]:
    return [
        {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "timestamp": at,
            "value": b"%d" % offset,
            "protocol": "flight",
            "day": at.date(),
        }
        for offset in offsets
    ]


def silver_rows(topic: str, origins: Mapping[int, str | None]) -> list[dict[str, Any]]:
    """By offset; None for a row that was never replayed."""
    return [
        {
            "n": offset,
            "at": NOW,
            "_topic": topic,
            "_partition": 0,
            "_offset": offset,
            "_timestamp": NOW,
            "_origin": origin or f"{topic}/0/{offset}",
        }
        for offset, origin in origins.items()
    ]


def letter_rows(topic: str, offsets: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {**row, "reason": "a rule", "origin": f"{topic}/0/{row['offset']}"}
        for row in bronze_rows(topic, offsets)
    ]


def write_table(
    project: Path, name: str, schema: pa.Schema, batches: Sequence[Sequence[Mapping[str, Any]]]
) -> Path:
    """One file for each batch that has rows."""
    directory = project / "tables" / name
    log = directory / "_spark_metadata"
    log.mkdir(parents=True)
    for number, rows in enumerate(batches):
        lines = ["v1"]
        if rows:
            path = directory / f"part-{number}.parquet"
            pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)
            entry = {"path": path.as_uri(), "size": path.stat().st_size, "isDir": False}
            more = {"modificationTime": 1_000 + number, "blockReplication": 1, "blockSize": 1}
            lines.append(json.dumps({**entry, **more, "action": "add"}, separators=(",", ":")))
        (log / str(number)).write_text("\n".join(lines))
    return directory


def write_checkpoint(
    project: Path,
    name: str,
    client: FlightClient,
    reached: Mapping[str, Sequence[int]],
    batch: int = 0,
) -> Path:
    """`reached`: the next offset of each partition, by topic."""
    flow = project / "storage" / "_checkpoints" / "spark_catalog" / "default" / name / name / "0"
    for part in ("offsets", "commits"):
        (flow / part).mkdir(parents=True, exist_ok=True)
    (flow / "metadata").write_text('{"id":"72509a02-b60f-46c1-98e0-e1a57b5e97a0"}')
    topics = {
        topic: {
            "created_us": client.describe(topic).created_us,
            "partitions": {str(number): offset for number, offset in enumerate(offsets)},
        }
        for topic, offsets in reached.items()
    }
    progress = json.dumps({"version": 1, "query": "0123456789ab", "topics": topics})
    (flow / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{progress}")
    (flow / "commits" / str(batch)).write_text("v1\n{}")
    return flow
