"""Keys are in no plan, progress, error, event log, checkpoint or log of Spark, however they are given.

What Spark itself shows of options is set as docs/spark.md says.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docs.markdown import ROOT, Document
from kit.limits import HANG_S
from kit.live_server import LiveServer
from spark.conftest import HIDDEN_KEYS, KEY, KEY_VARIABLE, Make, numbers, options

from penstock.client.flight import FlightClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def given(request: pytest.FixtureRequest, server: LiveServer, tmp_path: Path) -> dict[str, str]:
    """Options of a server, with the key in the way that the test is about."""
    file = tmp_path / "api.key"
    file.write_text(KEY)
    ways = {"accessKey": KEY, "keyFile": str(file), "keyEnv": KEY_VARIABLE}
    rest = {name: text for name, text in options(server).items() if name != "accessKey"}
    return {**rest, request.param: ways[request.param]}


def explain(*frames: "DataFrame") -> None:
    for frame in frames:
        for mode in ("extended", "formatted", "cost"):
            frame.explain(mode)


def run_stream(frame: "DataFrame", checkpoint: Path, **sink: str) -> list[str]:
    """Explains a query while it runs. Gives what it says of its progress."""
    writer = frame.writeStream.format("penstock").options(**sink)
    query = writer.option("checkpointLocation", str(checkpoint)).start()
    try:
        query.processAllAvailable()
        query.explain()
        query.explain(True)
        return [str(query.lastProgress), str(query.status)]
    finally:
        query.stop()


def complaints(batch: "DataFrame", stream: "DataFrame") -> list[str]:
    """What is said of a topic that is not there."""
    with pytest.raises(Exception, match="no topic named") as caught:
        batch.collect()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(Exception, match="no topic named") as caught_later:
        query.processAllAvailable()
    return [str(caught.value), str(caught_later.value), str(query.exception())]


def content(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def until_written(spark: "SparkSession", events: Path, mark: str) -> None:
    """Until the event log has all that was done before this, and a command with a mark."""
    spark.range(1).createOrReplaceTempView(mark)
    until_s = time.monotonic() + HANG_S
    while mark.encode() not in content(events):
        assert time.monotonic() < until_s, "the mark is not in the event log"
        spark.range(1).count()  # another look after another job


@pytest.mark.parametrize("given", ["accessKey", "keyFile", "keyEnv"], indirect=True)
def test_a_key_is_nowhere_to_be_seen(
    spark: "SparkSession",
    scratch: Path,
    client: FlightClient,
    make: Make,
    topic: str,
    tmp_path: Path,
    given: dict[str, str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    source, target = f"{topic}.from", f"{topic}.to"
    make(source, numbers(0, 3))
    make(target)
    reader = spark.read.format("penstock").options(**given)
    stream_reader = spark.readStream.format("penstock").options(**given)
    batch = reader.option("subscribe", source).load()
    stream = stream_reader.option("subscribe", source).option("startingOffsets", "earliest").load()

    batch.createOrReplaceTempView("penstock_view")
    explain(batch, stream, spark.table("penstock_view"))
    batch.write.format("penstock").options(**given, topic=target).mode("append").save()
    checkpoint = tmp_path / "check"
    said = run_stream(stream, checkpoint, **given, topic=target)
    said += complaints(
        reader.option("subscribe", "nowhere").load(),
        stream_reader.option("subscribe", "nowhere").load(),
    )
    shown = capfd.readouterr()
    record = scratch / "record"
    until_written(spark, record / "events", f"end_{topic.replace('-', '_')}")

    assert client.offsets(target) == [(0, 6)]
    places = {
        "output": "\n".join([shown.out, shown.err, *said]).encode(),
        "event log": content(record / "events"),
        "logs": content(record / "logs"),
        "checkpoint": content(checkpoint),
    }
    # Other options are there to be seen.
    assert [name for name, text in places.items() if source.encode() not in text] == []
    assert [name for name, text in places.items() if KEY.encode() in text] == []


def test_the_settings_are_those_of_the_page() -> None:
    blocks = Document(ROOT / "docs" / "spark.md").of("text")
    (found,) = [block.text.splitlines() for block in blocks if "redaction" in block.text]
    assert dict(line.split(maxsplit=1) for line in found) == HIDDEN_KEYS
