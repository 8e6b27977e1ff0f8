"""What is kept of a write, and with which number the next stream begins: on streams that follow a script.

The real thing is in test_resume.py; here are the moments that a real server does not repeat at will.
"""

import json
import queue
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from kit.limits import HANG_S
from pyarrow import flight

from penstock.client.flight.put import Put

LAST = (1 << 32) - 1
# Numbers that the server gives, each for so many rows.
Answers = list[tuple[int, int]]


class Stream:
    """Ends when told, or with the data; before that it answers."""

    def __init__(self, answers: Answers, error: Exception | None = None) -> None:
        self.sent: list[int] = []
        self._answers = answers
        self._error = error
        self._told: queue.SimpleQueue[pa.Buffer | None] = queue.SimpleQueue()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self.sent.append(batch["value"][0].as_py())

    def end(self) -> None:
        for sequence, count in self._answers:
            told = {"topic": "t", "partition": 0, "count": count, "sequence": sequence}
            self._told.put(pa.py_buffer(json.dumps(told).encode()))
        self._told.put(None)

    def done_writing(self) -> None:
        self.end()

    def read(self) -> pa.Buffer | None:
        return self._told.get(timeout=HANG_S)

    def close(self) -> None:
        if self._error is not None:
            raise self._error


def put_of(sequence: int, in_groups: bool, *between: Callable[[Put], None]) -> Put:
    """Three batches of three rows; what stands between them is called with the put."""
    schema = pa.schema({"value": pa.int64()})

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            yield pa.record_batch([pa.array([number, number, number])], schema=schema)
            if number < len(between):
                between[number](put)

    put = Put(pa.RecordBatchReader.from_batches(schema, batches()), sequence, in_groups=in_groups)
    return put


def run(put: Put, stream: Stream) -> bool:
    return put.run((stream, stream), None)


@pytest.mark.parametrize(
    ("sequence", "answers", "in_groups", "following", "kept"),
    [
        (0, [(0, 3)], False, 1, [1, 2]),
        (0, [(0, 2), (0, 1)], True, 1, [1, 2]),
        # The rest of the parts is not heard: the batch is there as a whole all the same.
        (0, [(0, 2)], True, 1, [1, 2]),
        (0, [(0, 3), (1, 3), (2, 1)], True, 3, []),
        (LAST, [(LAST, 3), (0, 3)], False, 1, [2]),
        (LAST - 1, [(LAST - 1, 3), (LAST, 3), (LAST, 0)], True, 0, [2]),
        # Cut into two by the server, and both are there.
        (5, [(5, 2), (6, 1)], False, 7, [1, 2]),
    ],
)
def test_the_next_stream_begins_with_what_is_not_confirmed(
    sequence: int, answers: Answers, in_groups: bool, following: int, kept: list[int]
) -> None:
    put = put_of(sequence, in_groups)
    lost = flight.FlightUnavailableError("lost")
    if kept:
        with pytest.raises(flight.FlightUnavailableError):
            run(put, Stream(answers, lost))
        assert put.resumable
    else:
        assert run(put, Stream(answers))
    assert put.sequence == following
    if kept:
        again = Stream([(following + place, 3) for place in range(len(kept))])
        assert run(put, again)
        assert again.sent == kept
    assert put.confirmed_rows == 9


def ends(stream: Stream) -> Callable[[Put], None]:
    """While the source is asked for more."""

    def wait_for_the_end(put: Put) -> None:
        stream.end()
        with put._changed:
            assert put._changed.wait_for(lambda: put._over, 20)

    return wait_for_the_end


@pytest.mark.parametrize("error", [flight.FlightUnavailableError, flight.FlightTimedOutError])
def test_in_the_middle_of_a_batch_there_is_no_way_on(error: type[Exception]) -> None:
    """Not even when it was only the time of the stream that ran out: sent again under the next number, its
    first rows would be stored twice."""
    stream = Stream([(0, 2)], error("over"))
    put = put_of(0, False, ends(stream))
    with pytest.raises(error):
        run(put, stream)
    assert not put.resumable


@pytest.mark.parametrize("answers", [[], [(0, 3)]])
def test_a_stream_may_run_out_of_its_time_while_the_source_is_slow(answers: Answers) -> None:
    """Nothing is wrong with the server: it is no failure, and the next stream goes on."""
    stream = Stream(answers, flight.FlightTimedOutError("over"))
    put = put_of(0, True, ends(stream))
    assert not run(put, stream)
    assert stream.sent == [0]
    following = Stream([(number, 3) for number in range(3)])
    assert run(put, following)
    assert following.sent == ([1, 2] if answers else [0, 1, 2])
    assert put.confirmed_rows == 9


def test_no_answer_is_an_error() -> None:
    with pytest.raises(flight.FlightInternalError, match="without an answer"):
        run(put_of(0, True), Stream([(0, 3)]))
