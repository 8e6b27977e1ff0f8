"""The broker is killed in the middle of one large write, with a Spark that repeats no task: nobody notices.

Spark runs as local[2]: the first task that fails would end the job.
"""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from kit.live_server import WAIT_S
from kit.restarting import RestartingServer
from spark.conftest import KEY

from penstock.client.flight import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_BYTES = 100
TASKS = 2
# Of each task between two kills: more than twice what is sent at once.
STEP_ROWS = 150_000
# The broker dies when so much more is staged: a part of that.
KILL_AFTER_BYTES = 5_000_000
LOOK_AGAIN_S = 0.005


@dataclass(frozen=True, slots=True)
class Scale:
    kills: int

    @property
    def rows(self) -> int:
        return TASKS * STEP_ROWS * (self.kills + 1)


SCALES = [
    pytest.param(Scale(2), id="small"),
    pytest.param(Scale(10), id="large", marks=[pytest.mark.soak]),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartingServer]:
    with RestartingServer(tmp_path_factory.mktemp("restarts") / "data") as server:
        yield server


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return re.sub(r"\W", "-", request.node.name)


def options(broker: RestartingServer, **given: str) -> dict[str, str]:
    retries = {"fetchOffset.numRetries": "200", "fetchOffset.retryIntervalMs": "100"}
    return {"server": broker.address, "accessKey": KEY, **retries, **given}


def values(scale: Scale) -> pa.Array:
    digits = [str(number).zfill(VALUE_BYTES) for number in range(scale.rows)]
    return pa.array(digits, pa.string()).cast(pa.binary())


def held_back(frame: "DataFrame", scale: Scale, gates: Path) -> "DataFrame":
    """The same rows. After each step a task waits at a gate, a pipe that somebody must open."""
    gates.mkdir()
    for number in range(scale.kills):
        os.mkfifo(gates / str(number))
    path, step, count, schema = str(gates), STEP_ROWS, scale.kills, frame.schema

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        passed = gate = 0
        for batch in batches:
            passed += batch.num_rows
            while gate < count and passed > step * (gate + 1):
                os.close(os.open(f"{path}/{gate}", os.O_RDONLY))
                gate += 1
            yield batch

    return frame.mapInArrow(rows, schema)


@contextmanager
def killed_in_the_middle(broker: RestartingServer, scale: Scale, gates: Path) -> Iterator[None]:
    """While a job runs. It cannot end before all gates are opened."""
    over = threading.Event()
    opened: list[int] = []
    before = broker.restarts

    def kill() -> None:
        for number in range(scale.kills):
            enough = broker.staged_bytes() + KILL_AFTER_BYTES
            while broker.staged_bytes() < enough and not over.wait(LOOK_AGAIN_S):
                continue
            try:
                if not over.is_set():
                    broker.restart()
            finally:
                opened.append(os.open(gates / str(number), os.O_RDWR))

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        over.set()
        killer.join(WAIT_S)
        for descriptor in opened:
            os.close(descriptor)
    assert broker.restarts - before == scale.kills


def stored(broker: RestartingServer, topic: str) -> pa.ChunkedArray:
    with connect(broker.address, KEY) as client:
        return client.read(topic).read_all()["value"]


@pytest.mark.parametrize("scale", SCALES)
def test_a_batch_write(
    spark: "SparkSession", broker: RestartingServer, tmp_path: Path, topic: str, scale: Scale
) -> None:
    gates = tmp_path / "gates"
    numbers = spark.range(0, scale.rows, 1, TASKS)
    frame = numbers.selectExpr(f"lpad(id, {VALUE_BYTES}, '0') AS value")
    frame = held_back(frame, scale, gates)
    writer = frame.write.format("penstock").mode("append")
    given = options(broker, topic=topic, createTopics="true")
    with killed_in_the_middle(broker, scale, gates):
        writer.options(**given).save()
    assert stored(broker, topic).equals(pa.chunked_array([values(scale)]))


@pytest.mark.parametrize("scale", SCALES)
def test_a_batch_of_a_stream(
    spark: "SparkSession", broker: RestartingServer, tmp_path: Path, topic: str, scale: Scale
) -> None:
    """Read from the broker that is killed, and written to it."""
    gates = tmp_path / "gates"
    with connect(broker.address, KEY) as client:
        client.write(f"{topic}.from", pa.table({"value": values(scale)}), create=True)
    given = options(broker, subscribe=f"{topic}.from", minPartitions=str(TASKS))
    given["startingOffsets"] = "earliest"
    frame = spark.readStream.format("penstock").options(**given).load().select("value")
    writer = (
        held_back(frame, scale, gates).writeStream.format("penstock").trigger(availableNow=True)
    )
    given = options(broker, topic=topic, createTopics="true")
    query = writer.options(**given).option("checkpointLocation", str(tmp_path / "check")).start()
    try:
        with killed_in_the_middle(broker, scale, gates):
            assert query.awaitTermination(int(WAIT_S)), "the query did not end"
        assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [
            scale.rows
        ]
    finally:
        query.stop()
    assert stored(broker, topic).equals(pa.chunked_array([values(scale)]))
