"""What a reading task does when records vanish under it. A real server, no Spark."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest
from kit.engines import embedded
from kit.live_server import LiveServer
from spark.conftest import KEY, Make, address, append, numbers

from penstock.client.errors import NotAuthorized, NotFound, Refused
from penstock.client.flight import FlightClient
from penstock.log.settings import TopicSettings
from penstock.server.flight.calls import FlightCalls, Give
from penstock.server.flight.link import Describe, Login, Question
from penstock.spark.connection import Connection
from penstock.spark.positions import DataLost
from penstock.spark.ranges import Range
from penstock.spark.reading import MAX_LOOKS, OFFSET_OUT_OF_RANGE, read_ranges

# More than all buffers between the server and us hold: a loss after the first batch hits the middle.
VALUE_BYTES = 100_000
RECORDS = 640
SEGMENT_BYTES = 1 << 20
KEPT_FROM = RECORDS - 50
AFTER = 7

Lose = Callable[[LiveServer, str], None]


def trim(server: LiveServer, topic: str) -> None:
    engine = embedded(server.server.engine)
    server.call(lambda: engine.catalogue.partition(topic, 0).trim(KEPT_FROM))


def delete(server: LiveServer, topic: str) -> None:
    server.delete_topic(topic)


def make_anew(server: LiveServer, topic: str) -> None:
    delete(server, topic)
    server.call(lambda: server.server.engine.create_topic(topic, 1, TopicSettings()))


def whole(client: FlightClient, topic: str) -> Range:
    found = client.describe(topic)
    return Range(topic, 0, *found.bounds[0], found.created_us)


@pytest.fixture
def ranges(server: LiveServer, client: FlightClient, make: Make, topic: str) -> list[Range]:
    """One of many segments, and a small one of another topic."""
    settings = TopicSettings(segment_bytes=SEGMENT_BYTES)
    server.call(lambda: server.server.engine.create_topic(topic, 1, settings))
    values = [b"%06d" % number * (VALUE_BYTES // 6) for number in range(RECORDS)]
    for start in range(0, RECORDS, 10):
        append(client, topic, 0, values[start : start + 10])
    make(f"{topic}.after", numbers(0, AFTER))
    return [whole(client, topic), whole(client, f"{topic}.after")]


def read(
    server: LiveServer, ranges: Sequence[Range], lose: Callable[[], None], fail: bool
) -> dict[str, list[int]]:
    """The offsets of each topic. The loss comes after the first batch; no retries are granted."""
    connection = Connection(address(server), KEY, retries=0)
    found: dict[str, list[int]] = {}
    for batch in read_ranges(connection, tuple(ranges), extras=(), fail_on_data_loss=fail):
        offsets = batch.column("offset").to_pylist()
        for offset, value in zip(offsets, batch.column("value").to_pylist(), strict=True):
            assert value.startswith(b"%06d" % offset)
        if not found:
            lose()
        found.setdefault(batch.column("topic")[0].as_py(), []).extend(offsets)
    return found


@pytest.mark.parametrize(
    ("lose", "left"), [(trim, range(KEPT_FROM, RECORDS)), (delete, range(0)), (make_anew, range(0))]
)
def test_a_loss_in_the_middle_is_left_out(
    server: LiveServer, ranges: list[Range], topic: str, lose: Lose, left: range
) -> None:
    found = read(server, ranges, lambda: lose(server, topic), fail=False)
    assert found[f"{topic}.after"] == list(range(AFTER))
    before = len(found[topic]) - len(left)
    assert 0 < before < KEPT_FROM, "the loss came too late"
    assert found[topic] == [*range(before), *left]


@pytest.mark.parametrize(
    ("lose", "complaint"),
    [
        (trim, rf"has offsets {KEPT_FROM} to {RECORDS}, but \d+ to {RECORDS} are to be read"),
        (delete, "is gone"),
        (make_anew, "was deleted and made anew"),
    ],
)
def test_a_loss_in_the_middle_fails_with_a_hint(
    server: LiveServer, ranges: list[Range], topic: str, lose: Lose, complaint: str
) -> None:
    with pytest.raises(DataLost, match=complaint) as caught:
        read(server, ranges, lambda: lose(server, topic), fail=True)
    assert "failOnDataLoss" in str(caught.value)


@pytest.mark.parametrize("fail", [False, True])
def test_a_partition_that_is_gone(
    server: LiveServer, client: FlightClient, make: Make, topic: str, fail: bool
) -> None:
    make(topic, numbers(0, 3))
    created_us = client.describe(topic).created_us
    wanted = [Range(topic, 5, 0, 3, created_us)]
    if fail:
        with pytest.raises(DataLost, match=f"partition 5 of '{re.escape(topic)}' is gone"):
            read(server, wanted, lambda: None, fail)
    else:
        assert read(server, wanted, lambda: None, fail) == {}


def test_one_question_for_each_range_that_is_read(
    server: LiveServer,
    client: FlightClient,
    make: Make,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the server hears them from its Flight process; each is about one partition of many."""
    make(topic, *[numbers(0, 2) for _ in range(5)])
    facts = client.describe(topic)
    wanted = [Range(topic, number, 0, 2, facts.created_us) for number in (1, 4)]
    asked: list[object] = []
    answer = FlightCalls._answer

    def noting(self: FlightCalls, question: Question, body: bytes, give: Give) -> None:
        if not isinstance(question, Login):
            asked.append(question.partitions if isinstance(question, Describe) else question)
        answer(self, question, body, give)

    monkeypatch.setattr(FlightCalls, "_answer", noting)
    assert read(server, wanted, lambda: None, True) == {topic: [0, 1, 0, 1]}
    assert asked == [(1,), (4,)]


@pytest.mark.parametrize(("fail", "left"), [(False, [3, 4]), (True, None)])
def test_a_loss_before_the_first_row(
    server: LiveServer, client: FlightClient, make: Make, topic: str, fail: bool,
    left: list[int] | None,
) -> None:  # fmt: skip
    """The end of the range never was, and its beginning is trimmed."""
    make(topic, numbers(0, 5))
    engine = embedded(server.server.engine)
    server.call(lambda: engine.catalogue.partition(topic, 0).trim(3))
    wanted = [Range(topic, 0, 1, 9, client.describe(topic).created_us)]
    if left is None:
        with pytest.raises(DataLost, match="has offsets 3 to 5, but 1 to 9 are to be read"):
            read(server, wanted, lambda: None, fail)
    else:
        assert read(server, wanted, lambda: None, fail) == {topic: left}


# ---- without a server ----------------------------------------------------------------------------


class Contradicting:
    """A connection to a server where everything is there when it is asked, and nothing when it is read."""

    def __init__(self, error: Refused) -> None:
        self.error = error
        self.reads = self.waits = 0

    def client(self) -> "Contradicting":
        return self

    def wait(self) -> None:
        self.waits += 1

    def action(self, kind: str, **body: Any) -> dict[str, Any]:
        return {"created_us": 1, "partitions": [{"earliest": 0, "latest": 9}]}

    def stream(self, *wanted: object, **more: object) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        raise self.error


@pytest.mark.parametrize(
    ("error", "reads"),
    [
        (Refused(OFFSET_OUT_OF_RANGE, "offset out of range", "reading"), MAX_LOOKS),
        (NotFound(1, "no topic named 't'", "reading"), MAX_LOOKS),
        (NotAuthorized(10, "may not read topic", "reading"), 1),
        (Refused(19, "invalid", "reading"), 1),
    ],
)
@pytest.mark.parametrize("fail", [False, True])
def test_a_server_that_contradicts_itself(error: Refused, reads: int, fail: bool) -> None:
    connection = Contradicting(error)
    wanted = (Range("t", 0, 0, 9, 1),)
    with pytest.raises(Refused) as caught:
        list(read_ranges(cast(Connection, connection), wanted, extras=(), fail_on_data_loss=fail))
    assert caught.value is error
    # The first look after a refusal comes at once.
    assert (connection.reads, connection.waits) == (reads, max(0, reads - 2))
