"""BlipMQ splitters: grouping, order, framing errors, and agreement with a plain frame-by-frame walk."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.ways import WAYS, Feed, byte_by_byte, prefixes, whole

from penstock.wire.blipmq import frames as blipmq
from penstock.wire.blipmq.frames import BlipMQProtocolError
from penstock.wire.blipmq.split import (
    AckRun,
    Control,
    PollRun,
    PublishRun,
    split_before_login,
    split_replies,
    split_requests,
    unpack_ids,
)
from penstock.wire.primitives import frame_size

# (frame type, correlation id, what the payload says)
Event = tuple[int, int, tuple[object, ...]]


def events(operations: list[Any]) -> list[Event]:
    """One entry for each frame, in the order of the operations."""
    found: list[Event] = []
    for operation in operations:
        if isinstance(operation, PublishRun):
            ids = unpack_ids(operation.correlation_ids)
            assert len(ids) == len(operation.values)
            found += [
                (blipmq.PUBLISH, cid, (operation.topic, operation.qos, value))
                for cid, value in zip(ids, operation.values, strict=True)
            ]
        elif isinstance(operation, PollRun):
            ids = unpack_ids(operation.correlation_ids)
            assert operation.count == len(ids)
            found += [(blipmq.POLL, cid, (operation.subscription_id,)) for cid in ids]
        elif isinstance(operation, AckRun):
            tags = unpack_ids(operation.tags)
            assert operation.count == len(tags)
            assert operation.first_tag == tags[0]
            in_a_row = tags == tuple(range(tags[0], tags[0] + len(tags)))
            assert operation.consecutive == (in_a_row and tags[0] > 0 and tags[-1] < 2**63)
            found += [(blipmq.ACK, tag, (operation.subscription_id,)) for tag in tags]
        else:
            assert isinstance(operation, Control)
            found.append((operation.frame_type, operation.correlation_id, (operation.payload,)))
    return found


def plain_events(data: bytes) -> list[Event]:
    """The same by hand, for frames that are whole."""
    found: list[Event] = []
    while data:
        size = 4 + int.from_bytes(data[:4], "big")
        kind, cid, payload = data[4], int.from_bytes(data[5:13], "big"), data[13:size]
        found.append((kind, cid, _plain_payload(kind, payload)))
        data = data[size:]
    return found


def _plain_payload(kind: int, payload: bytes) -> tuple[object, ...]:
    try:
        if kind == blipmq.PUBLISH:
            publish = blipmq.decode_publish(payload)
            return publish.topic.encode(), publish.qos, publish.message
        if kind == blipmq.POLL:
            return (blipmq.decode_poll(payload),)
        if kind == blipmq.ACK:
            return (blipmq.decode_ack(payload),)
    except BlipMQProtocolError:
        return (payload,)
    return (payload,)


def by_topic(found: list[Event]) -> list[Event]:
    """Within each stretch of good PUBLISH frames, topics one after the other: what may be moved."""
    ordered: list[Event] = []
    stretch: list[Event] = []
    for event in [*found, None]:
        if event is not None and event[0] == blipmq.PUBLISH and len(event[2]) == 3:
            stretch.append(event)
            continue
        ordered += sorted(stretch, key=lambda one: str(one[2][0]))
        stretch = []
        if event is not None:
            ordered.append(event)
    return ordered


def publish(cid: int, topic: bytes, qos: int = 1, value: bytes = b"v") -> bytes:
    return blipmq.encode_publish(cid, topic, qos, value)


def raw(kind: int, cid: int, payload: bytes) -> bytes:
    return (9 + len(payload)).to_bytes(4, "big") + bytes((kind,)) + cid.to_bytes(8, "big") + payload


CONVERSATION = b"".join(
    (
        publish(1, b"demo"),
        publish(2, b"demo", value=b""),
        publish(3, b"other-topic", 0, b"x" * 300),
        blipmq.encode_subscribe(4, b"demo", 1),
        blipmq.encode_poll(5, 42),
        blipmq.encode_poll(6, 42),
        blipmq.encode_poll(7, 43),
        blipmq.encode_ack(8, 42),
        blipmq.encode_ack(9, 42),
        blipmq.encode_ping(2**64 - 1),
        raw(blipmq.PUBLISH, 10, b"\x07\x00\x01a"),
        raw(blipmq.POLL, 11, bytes(8)),
        raw(blipmq.ACK, 12, b"short"),
        publish(13, b"demo"),
    )
)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_bytes_arrive_gives_the_same_frames(way: Feed) -> None:
    operations, consumed, error = way(split_requests, CONVERSATION)
    assert (consumed, error) == (len(CONVERSATION), None)
    assert events(operations) == plain_events(CONVERSATION)


@pytest.mark.parametrize("way", WAYS)
def test_a_frame_that_is_not_all_there_waits(way: Feed) -> None:
    frame = publish(1, b"demo", 1, b"hello")
    for partial in prefixes(frame):
        operations, consumed, error = way(split_requests, frame + partial)
        assert (len(operations), consumed, error) == (1, len(frame), None)


def test_messages_of_one_topic_become_one_run() -> None:
    data = b"".join(publish(number, b"demo", 1, b"%d" % number) for number in range(100))
    ((run,), consumed, error) = split_requests(data, 0, len(data))
    assert isinstance(run, PublishRun)
    assert (consumed, error, run.topic, run.topic_name) == (len(data), None, b"demo", "demo")
    assert run.values == [b"%d" % number for number in range(100)]
    assert unpack_ids(run.correlation_ids) == tuple(range(100))


def test_topics_in_turn_become_one_run_each() -> None:
    data = b"".join(publish(number, b"topic-%d" % (number % 3)) for number in range(30))
    operations, _, _ = split_requests(data, 0, len(data))
    assert [run.topic for run in operations if isinstance(run, PublishRun)] == [
        b"topic-0",
        b"topic-1",
        b"topic-2",
    ]
    assert all(len(run.values) == 10 for run in operations if isinstance(run, PublishRun))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8, 12, 13, 14, 21, 300])
def test_topics_that_differ_in_one_byte_are_told_apart(size: int) -> None:
    """Runs compare topics eight bytes at a time: every byte has to count."""
    topic = b"t" * size
    for place in range(size):
        other = topic[:place] + b"u" + topic[place + 1 :]
        data = publish(1, topic) + publish(2, other) + publish(3, topic)
        operations, _, _ = split_requests(data, 0, len(data))
        assert [run.topic for run in operations if isinstance(run, PublishRun)] == [topic, other]


def test_a_topic_is_not_completed_with_bytes_behind_its_frame() -> None:
    data = publish(1, b"demo") + raw(blipmq.PUBLISH, 2, b"\x01\x00\x04de") + b"mo"
    operations, consumed, error = split_requests(data, 0, len(data))
    assert (consumed, error) == (len(data) - 2, None)
    assert events(operations)[1] == (blipmq.PUBLISH, 2, (b"\x01\x00\x04de",))


def test_a_change_of_qos_keeps_the_order_within_the_topic() -> None:
    data = b"".join(
        publish(number, b"demo", qos, b"%d" % number) for number, qos in enumerate([1, 1, 0, 1, 0])
    )
    operations, _, _ = split_requests(data, 0, len(data))
    assert [(run.qos, run.values) for run in operations if isinstance(run, PublishRun)] == [
        (1, [b"0", b"1"]),
        (0, [b"2"]),
        (1, [b"3"]),
        (0, [b"4"]),
    ]


@pytest.mark.parametrize(
    "between",
    [
        blipmq.encode_subscribe(9, b"demo", 1),
        blipmq.encode_poll(9, 1),
        blipmq.encode_ack(9, 1),
        blipmq.encode_ping(9),
        raw(blipmq.PUBLISH, 9, b""),
    ],
)
def test_a_publish_never_moves_across_another_frame(between: bytes) -> None:
    data = publish(1, b"demo") + publish(2, b"other") + between + publish(3, b"demo")
    operations, _, _ = split_requests(data, 0, len(data))
    assert [event[1] for event in events(operations)] == [1, 2, 9, 3]
    assert len(operations) == 4


def test_polls_and_acks_form_runs_only_while_they_follow_each_other() -> None:
    frames = [
        ("poll", 1),
        ("poll", 1),
        ("ack", 1),
        ("poll", 1),
        ("poll", 2),
        ("ack", 2),
        ("ack", 2),
    ]
    data = b"".join(
        (blipmq.encode_poll if kind == "poll" else blipmq.encode_ack)(number, subscription)
        for number, (kind, subscription) in enumerate(frames)
    )
    operations, _, _ = split_requests(data, 0, len(data))
    assert [
        (type(run).__name__, run.subscription_id, run.count)
        for run in operations
        if isinstance(run, PollRun | AckRun)
    ] == [
        ("PollRun", 1, 2),
        ("AckRun", 1, 1),
        ("PollRun", 1, 1),
        ("PollRun", 2, 1),
        ("AckRun", 2, 2),
    ]


@pytest.mark.parametrize(
    ("tags", "consecutive"),
    [
        ([1, 2, 3], True),
        ([7], True),
        ([1, 3], False),
        ([2, 1], False),
        ([1, 1], False),
        ([0], False),
        ([2**63 - 1, 2**63], False),
        ([2**64 - 1, 0], False),
    ],
)
def test_an_ack_run_says_whether_its_tags_are_one_range(tags: list[int], consecutive: bool) -> None:
    data = b"".join(blipmq.encode_ack(tag, 5) for tag in tags)
    ((run,), _, _) = split_requests(data, 0, len(data))
    assert isinstance(run, AckRun)
    assert (run.consecutive, run.first_tag, unpack_ids(run.tags)) == (
        consecutive,
        tags[0],
        tuple(tags),
    )


SPLITTERS = [split_requests, split_before_login, split_replies]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("split", SPLITTERS)
@pytest.mark.parametrize("length", [0, 1, 8, blipmq.MAX_LENGTH + 1, 0xFFFFFFFF])
def test_a_length_out_of_range_is_refused_with_its_four_bytes(
    length: int, split: Any, way: Feed
) -> None:
    good = blipmq.encode_ping(1)
    operations, consumed, error = way(split, good + length.to_bytes(4, "big"))
    assert [event[1] for event in events(operations)] == [1]
    assert consumed == len(good)
    assert isinstance(error, BlipMQProtocolError)
    assert error.code is None
    assert str(length) in error.what


@pytest.mark.parametrize(
    ("split", "cap"),
    [
        (split_requests, blipmq.MAX_LENGTH),
        (split_replies, blipmq.MAX_LENGTH),
        (split_before_login, blipmq.MAX_LOGIN_LENGTH),
    ],
)
def test_the_cap_itself_is_allowed(split: Any, cap: int) -> None:
    frame = raw(blipmq.PING, 1, bytes(cap - 9))
    operations, consumed, error = split(frame, 0, len(frame))
    assert (len(operations), consumed, error) == (1, len(frame), None)
    _, _, error = split((cap + 1).to_bytes(4, "big"), 0, 4)
    assert error is not None


def test_the_cap_is_an_argument() -> None:
    data = raw(blipmq.PING, 1, bytes(100))
    assert split_requests(data, 0, len(data), 109)[2] is None
    assert split_requests(data, 0, len(data), 108)[2] is not None


@pytest.mark.parametrize("split", SPLITTERS)
@pytest.mark.parametrize("kind", [0x00, 0x0A, 0x7F, 0xFF])
def test_an_unknown_type_is_refused_once_the_frame_is_complete(kind: int, split: Any) -> None:
    good = blipmq.encode_ping(1)
    bad = raw(kind, 2, b"payload")
    for partial in prefixes(bad):
        assert split(good + partial, 0, len(good + partial))[2] is None
    operations, consumed, error = split(good + bad + good, 0, len(good + bad + good))
    assert (len(operations), consumed) == (1, len(good))
    assert isinstance(error, BlipMQProtocolError)
    assert (error.code, error.position) == (None, len(good) + 4)
    assert f"0x{kind:02X}" in error.what


@pytest.mark.parametrize("way", WAYS)
def test_before_login_nothing_is_grouped_and_the_walk_waits_at_auth(way: Feed) -> None:
    first = publish(1, b"a") + blipmq.encode_hello(2) + publish(3, b"b") + publish(4, b"a")
    auth = blipmq.encode_auth(5, "dev-key")
    operations, consumed, error = way(split_before_login, first + auth)
    assert all(isinstance(operation, Control) for operation in operations)
    assert [operation.correlation_id for operation in operations] == [1, 2, 3, 4, 5]
    assert (consumed, error) == (len(first + auth), None)
    behind = first + auth + publish(6, b"a")
    assert split_before_login(behind, 0, len(behind))[1] == len(first + auth)


@pytest.mark.parametrize("way", WAYS)
def test_deliveries_keep_their_order_between_topics(way: Feed) -> None:
    data = b"".join(
        (
            publish(1, b"a"),
            publish(2, b"a"),
            publish(3, b"b", 0),
            publish(4, b"a"),
            blipmq.encode_ack(5, 0),
            blipmq.encode_nack(6, blipmq.UNKNOWN_TAG),
            blipmq.encode_pong(7),
        )
    )
    operations, consumed, error = way(split_replies, data)
    assert (consumed, error) == (len(data), None)
    assert [event[1] for event in events(operations)] == [1, 2, 3, 4, 5, 6, 7]
    if way is whole:
        runs = [run for run in operations if isinstance(run, PublishRun)]
        assert [(run.topic, run.qos, len(run.values)) for run in runs] == [
            (b"a", 1, 2),
            (b"b", 0, 1),
            (b"a", 1, 1),
        ]


def test_a_broken_delivery_is_the_servers_fault() -> None:
    data = publish(1, b"a") + raw(blipmq.PUBLISH, 2, b"\x01\x00\x09a")
    operations, consumed, error = split_replies(data, 0, len(data))
    assert (len(operations), consumed) == (1, len(publish(1, b"a")))
    assert isinstance(error, BlipMQProtocolError)


FRAMES = st.one_of(
    st.builds(
        publish,
        st.integers(0, 2**64 - 1),
        st.sampled_from([b"a", b"ab", b"topic-1", b"topic-2", b"orders.created", "é".encode()]),
        st.integers(0, 1),
        st.binary(max_size=30),
    ),
    st.builds(blipmq.encode_poll, st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 2**64 - 1])),
    st.builds(blipmq.encode_ack, st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2, 2**63])),
    st.builds(raw, st.integers(1, 9), st.integers(0, 2**64 - 1), st.binary(max_size=20)),
)


@given(st.lists(FRAMES, max_size=40))
def test_the_walk_agrees_with_one_frame_at_a_time(frames: list[bytes]) -> None:
    data = b"".join(frames)
    operations, consumed, error = whole(split_requests, data)
    assert (consumed, error) == (len(data), None)
    assert by_topic(events(operations)) == by_topic(plain_events(data))
    operations, consumed, error = byte_by_byte(split_requests, data)
    assert (consumed, error) == (len(data), None)
    assert events(operations) == plain_events(data)


LOOSE = st.one_of(
    st.binary(max_size=80),
    st.lists(FRAMES | st.binary(max_size=6), max_size=8).map(b"".join),
)


@given(st.sampled_from(SPLITTERS), LOOSE)
def test_any_bytes_parse_or_are_the_peers_fault(split: Any, data: bytes) -> None:
    operations, consumed, error = split(data, 0, len(data))
    assert 0 <= consumed <= len(data)
    assert error is None or isinstance(error, BlipMQProtocolError)
    # Nothing is held that was not sent: one event for each frame header, and no payload made up.
    assert 13 * len(events(operations)) <= consumed
    if split is not split_before_login:  # it stops at AUTH by design
        again, done, later = byte_by_byte(split, data)
        assert (done, later is None) == (consumed, error is None)
        assert by_topic(events(again)) == by_topic(events(operations))


def test_frame_size_tells_a_reader_how_much_to_make_room_for() -> None:
    frame = publish(1, b"demo", 1, bytes(1000))
    assert frame_size(frame, 0, 3) == 0
    assert frame_size(frame, 0, 4) == len(frame)
    assert frame_size(b"xx" + frame, 2, 20) == len(frame)


def test_a_control_frame_shows_itself() -> None:
    assert repr(Control(blipmq.PING, 7, b"x")) == "Control(PING, 7, b'x')"
