"""Felix's splitter: frames, runs of publishes, headers that are none, and agreement with a plain walk."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.ways import WAYS, Feed, byte_by_byte, prefixes, whole

from penstock.wire.felix import messages as m
from penstock.wire.felix.batches import encode_publish_batch
from penstock.wire.felix.frames import HEADER_BYTES, FelixProtocolError, frame_size, framed
from penstock.wire.felix.gets import GetRun
from penstock.wire.felix.split import MAX_RUN_BYTES, PublishRun, split_requests

# The example of row 51: t1/default/demo, payloads "hello" and empty.
BINARY = bytes.fromhex(
    "464c5831000100010000002400027431000764656661756c74000464656d6f000000020000000568656c6c6f00000000"
)


def message(**fields: object) -> bytes:
    return framed(json.dumps(fields).encode())


def publish(payload: str = "aGk=", stream: str = "demo", **more: object) -> bytes:
    names = {"tenant_id": "t1", "namespace": "default", "stream": stream}
    return message(type="publish", **names, payload=payload, **more)


def runs(data: bytes) -> list[PublishRun]:
    items, position, error = split_requests(data, 0, len(data))
    assert (position, error) == (len(data), None)
    assert all(isinstance(item, PublishRun) for item in items)
    return [item for item in items if isinstance(item, PublishRun)]


def names_of(run: GetRun) -> tuple[str | None, ...]:
    return run.tenant, run.namespace, run.cache


def events(items: list[Any]) -> list[object]:
    """One entry for each frame, in order."""
    found: list[object] = []
    for item in items:
        if isinstance(item, PublishRun):
            first = 0
            for number, end in enumerate(item.ends):
                names = (item.tenant, item.namespace, item.stream)
                values = tuple(item.values[first:end])
                found.append((names, values, item.acked[number], item.ids[number]))
                first = end
            assert first == len(item.values)
        elif isinstance(item, GetRun):
            found += [
                (names_of(item), *each)
                for each in zip(item.keys, item.key_texts, item.id_fields, strict=True)
            ]
        else:
            found.append(item)
    return found


CONVERSATION = b"".join(
    (
        BINARY,
        publish(ack="per_message", request_id=1),
        BINARY,
        publish("", stream="other"),
        message(
            type="publish_batch", tenant_id="t1", namespace="default", stream="other",
            payloads=["YQ==", "Yg=="], ack="per_batch", request_id="x",
        ),
        message(type="cache_get", key="k"),
        publish(),
        publish("A"),
        publish(),
        framed(b""),
        framed(b"\x00\x01", 1),
        framed(b'{"type":"cache_get","key":"k"}', 0xFFFE),
    )
)  # fmt: skip
DEMO = ("t1", "default", "demo")
OTHER = ("t1", "default", "other")
GOT = ((None, None, None), "k", b'"k"', b"")
BASE64 = "payload: not base64 of the standard alphabet with padding"
EXPECTED: list[object] = [
    (DEMO, (b"hello", b""), False, None),
    (DEMO, (b"hi",), True, 1),
    (DEMO, (b"hello", b""), False, None),
    (OTHER, (b"",), False, None),
    (OTHER, (b"a", b"b"), True, "x"),
    GOT,
    (DEMO, (b"hi",), False, None),
    m.Flaw(BASE64),
    (DEMO, (b"hi",), False, None),
    m.Flaw("invalid JSON: Input data was truncated"),
    m.Flaw("invalid publish batch: a name is cut off"),
    GOT,
]


@pytest.mark.parametrize("feed", WAYS)
def test_a_conversation(feed: Feed) -> None:
    items, position, error = feed(split_requests, CONVERSATION)
    assert error is None
    assert position == len(CONVERSATION)
    assert events(items) == EXPECTED


def test_the_example_of_row_51_both_ways() -> None:
    assert encode_publish_batch("t1", "default", "demo", [b"hello", b""]) == BINARY


def test_publishes_to_one_stream_are_one_run() -> None:
    data = BINARY + publish() + BINARY * 2
    (run,) = runs(data)
    alone = run.single(1)
    assert (alone.values, alone.ends, alone.acked, alone.ids) == ([b"hi"], [1], [False], [None])
    assert run.single(3).values == [b"hello", b""]


def test_a_run_ends_where_it_is_large() -> None:
    large = encode_publish_batch("t", "n", "s", [bytes(MAX_RUN_BYTES)])
    assert [len(run.values) for run in runs(large * 2)] == [1, 1]


@pytest.mark.parametrize("feed", WAYS)
@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (b"GET / HTTP/1.1", "a frame begins with FLX1"),
        (b"FLY1", "a frame begins with FLX1"),
        (b"X", "a frame begins with FLX1"),
        (b"FLX1\x00\x02\x00\x00\x00\x00\x00\x00", "version 2 is not supported, only 1"),
        (b"FLX1\x01\x00", "version 256 is not supported, only 1"),
    ],
)
def test_a_header_that_is_none_ends_the_connection(feed: Feed, bad: bytes, what: str) -> None:
    items, position, error = feed(split_requests, BINARY + bad)
    assert isinstance(error, FelixProtocolError)
    assert (error.what, error.code) == (what, 1)
    assert len(items) == 1
    assert position == len(BINARY)


@pytest.mark.parametrize("feed", WAYS)
def test_a_frame_above_the_limit_ends_the_stream_before_it_is_there(feed: Feed) -> None:
    items, position, error = feed(split_requests, BINARY + b"FLX1\x00\x01\x00\x00\x01\x00\x00\x01")
    assert isinstance(error, FelixProtocolError)
    assert (error.what, error.code) == ("frame too large", None)
    assert (len(items), position) == (1, len(BINARY))


def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    frame = framed(b"x" * 100)
    assert split_requests(frame, 0, len(frame), 100)[2] is None
    assert split_requests(frame, 0, len(frame), 99)[2] is not None


def test_an_incomplete_frame_waits() -> None:
    for part in prefixes(BINARY):
        assert split_requests(part, 0, len(part)) == ([], 0, None)
        size = frame_size(part, 0, len(part))
        assert size == (len(BINARY) if len(part) >= HEADER_BYTES else 0)


NAMES_RAW = bytes.fromhex("00027431000764656661756c74000464656d6f")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (NAMES_RAW + b"\xff\xff\xff\xff", "4294967295 payloads do not fit the frame"),
        (NAMES_RAW + b"\x00\x00\x00\x01\x00\x00\x00", "1 payloads do not fit the frame"),
        (NAMES_RAW + b"\x00\x00\x00\x01\x00\x00\x00\x02a", "a payload is cut off"),
        (
            NAMES_RAW + b"\x00\x00\x00\x02\x00\x00\x00\x05aaaaa\x00\x00\x00",
            "a payload is cut off",
        ),
        (NAMES_RAW + b"\x00\x00", "the names or the count are cut off"),
        (b"\x00\x01\xff" + b"\x00\x01a" * 2 + b"\x00\x00\x00\x00", "a name is not UTF-8"),
        (b"\xff\xffa", "a name is cut off"),
    ],
)  # fmt: skip
def test_a_bad_batch_is_a_flaw_and_the_frames_around_it_stay(payload: bytes, message: str) -> None:
    data = BINARY + framed(payload, 1) + BINARY
    items, position, error = split_requests(data, 0, len(data))
    assert (position, error) == (len(data), None)
    good = (DEMO, (b"hello", b""), False, None)
    assert events(items) == [good, m.Flaw(f"invalid publish batch: {message}"), good]


def test_a_batch_may_be_empty_have_empty_names_and_bytes_behind_it() -> None:
    frame = framed(b"\x00\x00" * 3 + b"\x00\x00\x00\x00" + b"behind", 1)
    assert events(split_requests(frame, 0, len(frame))[0]) == [(("", "", ""), (), False, None)]


TEXTS = st.text(max_size=5)
FRAMES = st.one_of(
    st.builds(
        encode_publish_batch, TEXTS, TEXTS, TEXTS, st.lists(st.binary(max_size=9), max_size=3)
    ),
    st.builds(publish, st.sampled_from(["", "YQ==", "YQ", "aGk="]), st.sampled_from("ab")),
    st.builds(framed, st.binary(max_size=30), st.integers(0, 3)),
    st.just(message(type="cache_get", key="k")),
)


@given(st.lists(FRAMES, max_size=8), st.binary(max_size=5))
def test_any_frames_split_the_same_however_they_arrive(frames: list[bytes], behind: bytes) -> None:
    data = b"".join(frames) + behind
    at_once, bit_by_bit = whole(split_requests, data), byte_by_byte(split_requests, data)
    assert events(at_once[0]) == events(bit_by_bit[0])
    assert at_once[1] == bit_by_bit[1]
    assert getattr(at_once[2], "what", None) == getattr(bit_by_bit[2], "what", None)
    assert len(events(at_once[0])) >= len(frames)


@given(st.binary(), st.integers(0, 50))
def test_any_bytes_parse_or_raise_nothing(data: bytes, limit: int) -> None:
    """The invariant of the splitter: items and a position within the input, and an error or none."""
    _, position, error = split_requests(data, 0, len(data), limit)
    assert 0 <= position <= len(data)
    assert error is None or isinstance(error, FelixProtocolError)
