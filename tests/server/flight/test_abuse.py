"""Peers with pyarrow alone, against a server process: whatever they send, each hears one clear error,
and the server says nothing in its log."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from kit.flight_client import FLIGHT
from kit.flight_peer import Peer
from kit.watched_server import Watched
from pyarrow import flight

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Watched(tmp_path_factory.mktemp("abuse") / "data", FLIGHT) as watched:
        with Peer(watched.port) as peer:
            peer.put({"topic": "t", "create": True}, rows(value=pa.array([b"a", b"b"])))
        yield watched


@pytest.fixture
def peer(watched: Watched) -> Iterator[Peer]:
    with Peer(watched.port) as peer:
        yield peer


def rows(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(list(columns.values()), names=list(columns))


def heard(caught: "pytest.ExceptionInfo[Exception]") -> str:
    """The words of the server, without what pyarrow adds."""
    text = str(caught.value)
    assert "Traceback" not in text and ".py" not in text
    return re.split(r"\. (?:Detail|gRPC client)", text, maxsplit=1)[0]


# --- what is asked for -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no JSON: Input data was truncated"),
        (b"\x00\xff", "is no JSON: JSON is malformed"),
        (b"\xef\xbb\xbf{}", "is no JSON: JSON is malformed"),
        (b'{"topic":"t"} x', "is no JSON: JSON is malformed: trailing characters"),
        (b'{"topic":"\xff"}', "is no JSON: 'utf-8' codec"),
        (b'{"topic":"\\ud800"}', "is no JSON"),
        (b"[" * 100_000, ": Expected `object`, got `array`"),
        (b'{"topic":' * 50_000, ": Expected `str`, got `object`"),
        (b"null", ": Expected `object`, got `null`"),
        (b'{"topic":"' + b"x" * 10_000_000 + b'"}', "has 10000012 bytes, 1048576 at most"),
        (b'{"topic":"t","start":-1}', ": Expected `int` >= 0"),
        (b'{"topic":"t","start":1.5}', ": Expected `int | null`, got `float`"),
        (b'{"topic":"t","start":1e999}', ": Number out of range"),
        (b'{"topic":"t","start":9223372036854775808}', ": Expected `int` <= 9223372036854775807"),
        (b'{"topic":"t","start":"0"}', ": Expected `int | null`, got `str`"),
        (b'{"topic":"t","start":true}', ": Expected `int | null`, got `bool`"),
        (b'{"topic":"t","columns":"value"}', ": Expected `array | null`, got `str`"),
        (b'{"topic":"t","columns":["value","value"]}', "columns: name at least one, and each"),
        (b'{"topic":"t","columns":["' + b"v" * 900_000 + b'"]}', "columns: no column 'vvvvv"),
        (b'{"topic":"' + b"x" * 900_000 + b'"}', "1 UNKNOWN_TOPIC: no topic named 'xxxxx"),
    ],
)
@pytest.mark.parametrize("where", ["ticket", "command"])
def test_tickets_and_commands(peer: Peer, where: str, content: bytes, words: str) -> None:
    call = peer.get if where == "ticket" else peer.describe
    with pytest.raises((pa.ArrowInvalid, pa.ArrowKeyError)) as caught:
        call(content)
    text = heard(caught)
    assert words in text
    assert text.startswith(("19 INVALID_REQUEST: ", "1 UNKNOWN_TOPIC: "))
    assert len(text) < 1100


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        ("", b"", "no action ''; there are topics"),
        ("x" * 1_000_000, b"", "no action 'xxx"),
        ("offsets", b"\xff", "body of offsets is no JSON"),
        ("offsets", b"[]", "body of offsets: Expected `object`, got `array`"),
        ("offsets", b'{"topic":"' + b"x" * 10_000_000 + b'"}', "body of offsets has 10000012 byt"),
        ("offsets_by_time", b'{"topic":"t","time_us":-1}', "Expected `int` >= 0"),
        ("offsets_by_time", b'{"topic":"t","time_us":0,"partitions":[0,0]}', "name each only once"),
        ("commit_group", b'{"group":"","offsets":[]}', "Expected `str` of length >= 1"),
        ("begin", b'{"name":"x","timeout_s":99999999999}', "Expected `int` <= 604800"),
        ("begin", b'{"name":"x1\\u0000y"}', "Expected `str` matching regex"),
        ("commit", b'{"name":"x","tasks":[1.5]}', "Expected `int`, got `float`"),
    ],
)
def test_actions(peer: Peer, kind: str, body: bytes, words: str) -> None:
    with pytest.raises(pa.ArrowInvalid) as caught:
        peer.act(kind, body)
    text = heard(caught)
    assert text.startswith("19 INVALID_REQUEST: ") and words in text


def test_patterns(peer: Peer) -> None:
    listed = list(peer.client.list_flights(b"\xff[[[", peer.options))
    assert listed == []
    with pytest.raises(pa.ArrowInvalid, match=r"^19 INVALID_REQUEST: a pattern of 5000000 bytes"):
        list(peer.client.list_flights(b"*" * 5_000_000, peer.options))


def test_an_exchange(peer: Peer) -> None:
    chosen = flight.FlightDescriptor.for_command(b"{}")
    writer, reader = peer.client.do_exchange(chosen, peer.options)
    with pytest.raises(pa.ArrowInvalid, match=r"^19 INVALID_REQUEST: there is no DoExchange"):
        reader.read_chunk()
    with pytest.raises(pa.ArrowInvalid):
        writer.close()


# --- what is written -------------------------------------------------------------------------------

TWO = pa.array(["a", "b"])
HUGE = pa.array([2**64 - 1, 0], pa.uint64())
PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
ONE_HEADER: list[Any] = [[{"key": "h", "value": b"1"}], []]


def run_ends() -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays([1, 2], TWO)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5, 2.5]), pa.array([1, 2]), pa.array([True, False]), pa.array([[b"a"], []]),
        pa.array([{"a": 1}, None]), pa.array([1, 1]).dictionary_encode(), run_ends(),
        pa.array([1, 2], pa.timestamp("us")), pa.array([1, 2]).cast(pa.decimal128(25)),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
@pytest.mark.parametrize("name", ["value", "key"])
def test_columns_that_are_no_bytes(peer: Peer, column: pa.Array, name: str) -> None:
    columns = {"value": TWO, name: column}
    with pytest.raises(pa.ArrowInvalid) as caught:
        peer.put({"topic": "t"}, rows(**columns))
    text = heard(caught)
    assert text.startswith(f"19 INVALID_REQUEST: not a batch: column {name} is ")
    assert text.endswith("; it must be binary or string")


@pytest.mark.parametrize(
    "headers",
    [
        pa.array([1, 2]),
        pa.array([["a"], ["b"]]),
        pa.array([[{"k": "a", "v": b"b"}], None]),
        pa.array([[{"key": "a"}], None]),
        pa.array([[{"key": "a", "value": b"b", "more": 1}], None]),
        pa.array([[{"key": 1, "value": 2}], None]),
        pa.array(ONE_HEADER, pa.list_view(PAIR)),
    ],
    ids=lambda column: str(column.type),
)
def test_headers_of_another_kind(peer: Peer, headers: pa.Array) -> None:
    """None of them is stored with empty names, say."""
    with pytest.raises(pa.ArrowInvalid) as caught:
        peer.put({"topic": "t"}, rows(value=TWO, headers=headers))
    assert "column headers is " in heard(caught)


@pytest.mark.parametrize(
    ("columns", "values", "keys"),
    [
        ({"value": TWO.dictionary_encode()}, [b"a", b"b"], [None, None]),
        ({"value": pa.array(["a", "b"], pa.large_string())}, [b"a", b"b"], [None, None]),
        ({"value": pa.array([b"a" * 50, b"b"], pa.binary_view())}, [b"a" * 50, b"b"], [None] * 2),
        ({"value": TWO, "key": pa.array(["k", None], pa.string_view())}, [b"a", b"b"], [b"k", None]),
        ({"value": pa.array([b"xy", b"zz"], pa.binary(2))}, [b"xy", b"zz"], [None, None]),
        ({"value": pa.nulls(2), "key": pa.nulls(2)}, [None, None], [None, None]),
        ({"value": pa.array([], pa.binary())}, [], []),
        ({"value": pa.array(["x", "a", "b"]).slice(1), "key": pa.array(["x", None, "k"]).slice(1)},
         [b"a", b"b"], [None, b"k"]),
        ({"value": TWO, "partition": pa.array([0, None], pa.uint64())}, [b"a", b"b"], [None, None]),
    ],
)  # fmt: skip
def test_all_kinds_of_bytes(
    request: pytest.FixtureRequest,
    peer: Peer,
    columns: dict[str, pa.Array],
    values: list[bytes],
    keys: list[bytes | None],
) -> None:
    topic = request.node.name
    peer.put({"topic": topic, "create": True}, rows(**columns))
    found = peer.get({"topic": topic}).read_all()
    assert found["value"].to_pylist() == values
    assert found["key"].to_pylist() == keys


@pytest.mark.parametrize(
    "headers",
    [
        pa.array(ONE_HEADER, pa.list_(PAIR)),
        pa.array(ONE_HEADER, pa.large_list(pa.struct([("value", pa.large_binary()),
                                                      ("key", pa.large_string())]))),
        pa.array([[("h", b"1")], []], pa.map_(pa.string(), pa.binary())),
        pa.array([[], *ONE_HEADER], pa.list_(PAIR)).slice(1),
    ],
    ids=lambda column: str(column.type),
)  # fmt: skip
def test_all_kinds_of_headers(
    request: pytest.FixtureRequest, peer: Peer, headers: pa.Array
) -> None:
    topic = request.node.name.replace("<", "(")
    peer.put({"topic": topic, "create": True}, rows(value=TWO, headers=headers))
    found = peer.get({"topic": topic, "headers": True}).read_all()
    assert found["headers"].to_pylist() == [[{"key": "h", "value": b"1"}], None]


def without_columns(peer: Peer) -> None:
    peer.put({"topic": "t"}, pa.record_batch([], names=[]))


def with_a_path_of_two(peer: Peer) -> None:
    chosen = flight.FlightDescriptor.for_path("a", "b")
    peer.client.do_put(chosen, rows(value=TWO).schema, peer.options)[0].close()


def with_a_bomb(peer: Peer) -> None:
    """A gigabyte in a megabyte."""
    packed = pa.DictionaryArray.from_arrays(
        pa.array([0] * 1000, pa.int16()), pa.array([bytes(MIB)])
    )
    peer.put({"topic": "t"}, rows(value=packed))


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (without_columns, "19 INVALID_REQUEST: column value is missing"),
        (with_a_path_of_two, "19 INVALID_REQUEST: a path is one topic name, not 2"),
        (with_a_bomb, "7 RECORD_TOO_LARGE: a record batch of 10"),
        (lambda peer: peer.put({"topic": "t"}, pa.record_batch([TWO, TWO], names=["value"] * 2)),
         "19 INVALID_REQUEST: a column is there twice"),
        (lambda peer: peer.put({}, rows(value=TWO, topic=pa.array([1, 2]))),
         "19 INVALID_REQUEST: not a batch: column topic is int64"),
        (lambda peer: peer.put({"topic": "t"}, rows(value=TWO, partition=pa.array([0, -1]))),
         "2 UNKNOWN_PARTITION: topic 't' has no partition -1"),
        (lambda peer: peer.put({"topic": "t"}, rows(value=TWO, partition=HUGE)),
         "2 UNKNOWN_PARTITION: topic 't' has no partition 18446744073709551615"),
        (lambda peer: peer.put({"topic": "t"}, rows(value=TWO, partition=pa.array([0.0, 1.0]))),
         "19 INVALID_REQUEST: column partition is double"),
        (lambda peer: peer.put(b'{"topic":"t","producer":{"id":-1,"epoch":0,"sequence":0}}',
                               rows(value=TWO)),
         "19 INVALID_REQUEST: command: Expected `int` >= 0"),
    ],
)  # fmt: skip
def test_writes_that_are_refused(peer: Peer, put: Callable[[Peer], None], words: str) -> None:
    with pytest.raises((pa.ArrowInvalid, pa.ArrowKeyError)) as caught:
        put(peer)
    assert heard(caught).startswith(words)
